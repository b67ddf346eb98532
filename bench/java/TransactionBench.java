// Sends for some seconds, plain or in transactions: java TransactionBench.java ADDRESS TOPIC SECONDS SIZE INTERVAL_MS ID
// ID is "-" for plain sending. Prints records, seconds, and the medians of flush and commit in milliseconds.

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionBench {
    static double median(List<Double> values) {
        Collections.sort(values);
        return values.isEmpty() ? 0 : values.get(values.size() / 2);
    }

    public static void main(String[] given) {
        boolean isTransactional = !given[5].equals("-");
        Properties config = new Properties();
        config.put("bootstrap.servers", given[0]);
        config.put("linger.ms", "5");
        config.put("batch.size", "131072");
        config.put("buffer.memory", "8388608");
        if (isTransactional) {
            config.put("transactional.id", given[5]);
        }
        byte[] value = new byte[Integer.parseInt(given[3])];
        long intervalNs = Long.parseLong(given[4]) * 1_000_000;
        List<Double> flushes = new ArrayList<>();
        List<Double> commits = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(given[1]);
            if (isTransactional) {
                producer.initTransactions();
            }
            long records = 0;
            long start = System.nanoTime();
            long end = start + (long) (Double.parseDouble(given[2]) * 1e9);
            while (System.nanoTime() < end) {
                if (isTransactional) {
                    producer.beginTransaction();
                }
                long until = System.nanoTime() + intervalNs;
                while (System.nanoTime() < until) {
                    for (int at = 0; at < 50; at++) {
                        producer.send(new ProducerRecord<>(given[1], value));
                    }
                    records += 50;
                }
                if (isTransactional) {
                    long before = System.nanoTime();
                    producer.flush();
                    long flushed = System.nanoTime();
                    producer.commitTransaction();
                    flushes.add((flushed - before) / 1e6);
                    commits.add((System.nanoTime() - flushed) / 1e6);
                }
            }
            producer.flush();
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.println(records + " " + seconds + " " + median(flushes) + " " + median(commits));
        }
    }
}
