// Counts words with Kafka Streams, exactly once: java WordCount.java BOOTSTRAP APPLICATION SOURCE TARGET STATE_DIRECTORY PROTOCOL
// Runs until it is killed; prints "running" once it is.

import java.util.Arrays;
import java.util.Properties;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public class WordCount {
    public static void main(String[] given) {
        Properties config = new Properties();
        config.put("bootstrap.servers", given[0]);
        config.put("application.id", given[1]);
        config.put("processing.guarantee", "exactly_once_v2");
        config.put("replication.factor", "1");
        config.put("num.stream.threads", "2");
        config.put("commit.interval.ms", "100");
        config.put("group.protocol", given[5]);
        if (given[5].equals("classic")) {
            // Members of streams groups have the time that the broker gives them.
            config.put("session.timeout.ms", "6000");
        }
        config.put("state.dir", given[4]);
        config.put("default.key.serde", Serdes.StringSerde.class.getName());
        config.put("default.value.serde", Serdes.StringSerde.class.getName());
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(given[2])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(given[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setStateListener((now, before) -> System.out.println(now.toString().toLowerCase()));
        streams.start();
    }
}
