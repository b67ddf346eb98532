// A transactional producer, a reader of committed records and a consume-transform-produce loop of Apache Kafka's own client.
//
// One JVM for all of them: a line on standard input is a run, and "done" (or "failed" and why) ends what it prints.
//
// produce BOOTSTRAP TOPICS ID COUNT PREFIX      every third transaction is aborted; prints the values that were committed
// read BOOTSTRAP TOPICS COUNT GROUP             by subscribe; prints the committed values it reads, COUNT of them
// copy BOOTSTRAP SOURCE TARGET GROUP ID COUNT   until COUNT records were copied
// fence BOOTSTRAP TOPIC ID                      what a producer is told whose id another one took

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

public class Transactions {
    static KafkaProducer<String, String> producer(String bootstrap, String id) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", id);
        config.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        config.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return new KafkaProducer<>(config);
    }

    static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        config.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return new KafkaConsumer<>(config);
    }

    static void produce(String bootstrap, String[] topics, String id, int count, String prefix) {
        try (KafkaProducer<String, String> producer = producer(bootstrap, id)) {
            producer.initTransactions();
            for (int transaction = 0; transaction < count; transaction++) {
                boolean kept = transaction % 3 != 2;
                producer.beginTransaction();
                for (int at = 0; at < 10; at++) {
                    for (String topic : topics) {
                        String value = prefix + "-" + transaction + "-" + at + (kept ? "" : "-aborted");
                        producer.send(new ProducerRecord<>(topic, value, value));
                        if (kept) {
                            System.out.println(topic + " " + value);
                        }
                    }
                }
                if (kept) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
    }

    static void read(String bootstrap, String[] topics, int count, String group) {
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group)) {
            consumer.subscribe(List.of(topics));
            long deadline = System.currentTimeMillis() + 60_000;
            int found = 0;
            while (found < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.topic() + " " + record.value());
                    found++;
                }
            }
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                System.out.println(record.topic() + " " + record.value());
            }
        }
    }

    static void copy(String bootstrap, String source, String target, String group, String id, int count) {
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group);
             KafkaProducer<String, String> producer = producer(bootstrap, id)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            long deadline = System.currentTimeMillis() + 60_000;
            int copied = 0;
            while (copied < count && System.currentTimeMillis() < deadline) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(target, record.key(), record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                copied += records.count();
            }
            System.out.println("copied " + copied);
        }
    }

    // Two producers with one id: what the first, fenced one is told.
    static void fence(String bootstrap, String topic, String id) {
        try (KafkaProducer<String, String> first = producer(bootstrap, id); KafkaProducer<String, String> second = producer(bootstrap, id)) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, "zombie"));
            first.flush();
            second.initTransactions();
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, "heir"));
            second.commitTransaction();
            try {
                first.commitTransaction();
                System.out.println("not fenced");
            } catch (ProducerFencedException error) {
                System.out.println("fenced");
            }
        }
    }

    static void run(String[] given) {
        String[] topics = given[2].split(",");
        switch (given[0]) {
            case "produce" -> produce(given[1], topics, given[3], Integer.parseInt(given[4]), given[5]);
            case "read" -> read(given[1], topics, Integer.parseInt(given[3]), given[4]);
            case "copy" -> copy(given[1], given[2], given[3], given[4], given[5], Integer.parseInt(given[6]));
            case "fence" -> fence(given[1], given[2], given[3]);
            default -> throw new IllegalArgumentException(given[0]);
        }
    }

    public static void main(String[] given) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer = "done";
            try {
                run(line.split(" "));
            } catch (RuntimeException error) {
                error.printStackTrace();
                answer = "failed " + error;
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
