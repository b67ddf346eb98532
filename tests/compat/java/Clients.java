// Apache Kafka's Java clients against a broker, in one JVM: every check prints "ok" and its name, or the program ends with status 1.
//
// Arguments: the broker's address, a prefix for the names of topics and groups.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeReplicaLogDirsResult.ReplicaLogDirInfo;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Clients {
    static final long START_MS = 1_700_000_000_000L;
    static final long DEADLINE_MS = 30_000;
    static String address;
    static String prefix;
    static Admin admin;

    interface Check {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        prefix = arguments[1];
        admin = Admin.create(Map.of("bootstrap.servers", address));
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            check("produce and consume " + codec, () -> produceAndConsume(codec));
        }
        check("a message that is too large", Clients::tooLarge);
        check("offsets for times and seek", Clients::timesAndSeek);
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            check("a group of three by " + assignor, () -> groupOfThree(assignor));
        }
        check("a static member", Clients::staticMember);
        check("transactions", Clients::transactions);
        check("topics", Clients::topics);
        check("configs", Clients::configs);
        check("groups", Clients::groups);
        check("log directories and producers", Clients::directoriesAndProducers);
        check("the cluster", Clients::cluster);
        check("what is off", Clients::off);
        admin.close();
        System.out.println("done");
    }

    static void check(String name, Check check) {
        try {
            check.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("failed " + name);
            error.printStackTrace(System.out);
            System.exit(1);
        }
    }

    static void equal(Object found, Object expected) {
        if (!expected.equals(found)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    static <E extends Throwable> void fails(Class<E> kind, Check check) throws Exception {
        try {
            check.run();
        } catch (ExecutionException error) {
            if (kind.isInstance(error.getCause())) {
                return;
            }
            throw error;
        }
        throw new AssertionError("no " + kind);
    }

    static String create(String name, int partitions, String... configs) throws Exception {
        String topic = prefix + "-" + name;
        Map<String, String> values = new HashMap<>();
        values.put("retention.ms", "-1");
        for (int at = 0; at < configs.length; at += 2) {
            values.put(configs[at], configs[at + 1]);
        }
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(values))).all().get();
        return topic;
    }

    static KafkaProducer<byte[], byte[]> producer(Object... settings) {
        Properties values = new Properties();
        values.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        put(values, settings);
        return new KafkaProducer<>(values, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... settings) {
        Properties values = new Properties();
        values.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, address);
        values.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        values.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        values.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "150");
        values.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000");
        put(values, settings);
        return new KafkaConsumer<>(values, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void put(Properties values, Object... settings) {
        for (int at = 0; at < settings.length; at += 2) {
            values.put(settings[at], String.valueOf(settings[at + 1]));
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static List<Future<RecordMetadata>> send(KafkaProducer<byte[], byte[]> producer, String topic, int count) {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            List<Header> headers = List.of(new RecordHeader("n", bytes("" + number)), new RecordHeader("null", null));
            byte[] key = number % 3 == 0 ? null : bytes("key " + number);
            byte[] value = number % 3 == 1 ? null : bytes("value " + number);
            sent.add(producer.send(new ProducerRecord<>(topic, 0, START_MS + number * 10L, key, value, headers)));
        }
        producer.flush();
        return sent;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        }
        equal(found.size(), count);
        return found;
    }

    static void produceAndConsume(String codec) throws Exception {
        String topic = create(codec, 1);
        try (KafkaProducer<byte[], byte[]> producer = producer("compression.type", codec, "linger.ms", 5)) {
            long offset = 0;
            for (Future<RecordMetadata> one : send(producer, topic, 100)) {
                equal(one.get().offset(), offset++);
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            int number = 0;
            for (ConsumerRecord<byte[], byte[]> record : read(consumer, 100)) {
                equal(record.timestamp(), START_MS + number * 10L);
                equal(Optional.ofNullable(record.key()).map(String::new), Optional.ofNullable(number % 3 == 0 ? null : "key " + number));
                equal(Optional.ofNullable(record.value()).map(String::new), Optional.ofNullable(number % 3 == 1 ? null : "value " + number));
                equal(new String(record.headers().lastHeader("n").value()), "" + number);
                equal(record.leaderEpoch(), Optional.of(0));
                number++;
            }
        }
    }

    static void tooLarge() throws Exception {
        String topic = create("large", 1);
        try (KafkaProducer<byte[], byte[]> producer = producer("max.request.size", 8_000_000, "batch.size", 0)) {
            equal(producer.send(new ProducerRecord<>(topic, new byte[1_048_000])).get().offset(), 0L);
            fails(RecordTooLargeException.class, () -> producer.send(new ProducerRecord<>(topic, new byte[1_048_600])).get());
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("max.partition.fetch.bytes", 1000, "fetch.max.bytes", 1000)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            equal(read(consumer, 1).get(0).value().length, 1_048_000);
        }
    }

    static void timesAndSeek() throws Exception {
        String topic = create("times", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            send(producer, topic, 50);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", prefix + "-times")) {
            consumer.assign(List.of(part));
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(part, START_MS + 95)).get(part);
            equal(found.offset(), 10L);
            equal(found.timestamp(), START_MS + 100);
            equal(consumer.beginningOffsets(List.of(part)).get(part), 0L);
            equal(consumer.endOffsets(List.of(part)).get(part), 50L);
            consumer.seek(part, 45);
            equal(read(consumer, 5).get(0).offset(), 45L);
            equal(consumer.currentLag(part).getAsLong(), 0L);
            consumer.seekToBeginning(List.of(part));
            equal(consumer.position(part), 0L);
            consumer.commitSync(Map.of(part, new OffsetAndMetadata(7, Optional.of(0), "note")));
            OffsetAndMetadata committed = consumer.committed(Set.of(part)).get(part);
            equal(committed, new OffsetAndMetadata(7, Optional.of(0), "note"));
            equal(consumer.partitionsFor(topic).size(), 1);
        }
    }

    // Every member polls on a thread of its own until it is told to leave.
    static final class Member extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Set<String> read = ConcurrentHashMap.newKeySet();
        volatile Set<TopicPartition> partitions = Set.of();
        volatile boolean leaves;
        volatile RuntimeException error;

        Member(String group, String topic, String assignor) {
            consumer = consumer("group.id", group, "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
            consumer.subscribe(List.of(topic));
            start();
        }

        @Override
        public void run() {
            try {
                while (!leaves) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                        read.add(record.partition() + "/" + record.offset());
                    }
                    partitions = Set.copyOf(consumer.assignment());
                }
                consumer.close();
            } catch (RuntimeException failure) {
                error = failure;
            }
        }

        void leave() throws InterruptedException {
            leaves = true;
            join();
            partitions = Set.of();
            if (error != null) {
                throw error;
            }
        }
    }

    static void until(String what, java.util.function.BooleanSupplier condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError(what + " did not come in time");
            }
            Thread.sleep(10);
        }
    }

    static boolean shared(List<Member> members, int partitions) {
        Set<TopicPartition> all = new HashSet<>();
        int count = 0;
        for (Member member : members) {
            if (member.error != null) {
                throw member.error;
            }
            if (member.partitions.isEmpty()) {
                return false;
            }
            all.addAll(member.partitions);
            count += member.partitions.size();
        }
        return count == partitions && all.size() == partitions;
    }

    static void groupOfThree(String assignor) throws Exception {
        String topic = create(assignor, 6);
        String group = prefix + "-" + assignor;
        List<Member> members = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            members.add(new Member(group, topic, assignor));
        }
        until("three members", () -> shared(members, 6));
        Member first = members.remove(0);
        first.leave();
        until("two members", () -> shared(members, 6));
        members.add(new Member(group, topic, assignor));
        until("three members again", () -> shared(members, 6));
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int number = 0; number < 60; number++) {
                producer.send(new ProducerRecord<>(topic, number % 6, null, bytes("" + number))).get();
            }
        }
        until("all records", () -> members.stream().mapToInt(member -> member.read.size()).sum() == 60);
        for (Member member : members) {
            member.leave();
        }
    }

    static void staticMember() throws Exception {
        String topic = create("static", 2);
        String group = prefix + "-static";
        Object[] settings = {"group.id", group, "group.instance.id", "one"};
        for (int round = 0; round < 2; round++) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
                consumer.subscribe(List.of(topic));
                long deadline = System.currentTimeMillis() + DEADLINE_MS;
                while (consumer.assignment().size() < 2 && System.currentTimeMillis() < deadline) {
                    consumer.poll(Duration.ofMillis(50));
                }
                equal(consumer.assignment().size(), 2);
                equal(consumer.groupMetadata().generationId(), 1);
            }
        }
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
        equal(admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size(), 0);
    }

    static void transactions() throws Exception {
        String topic = create("transactions", 1);
        String group = prefix + "-transactions";
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = producer("transactional.id", prefix + "-t");
             KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "isolation.level", "read_committed")) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, bytes("" + number)));
                producer.sendOffsetsToTransaction(Map.of(part, new OffsetAndMetadata(number)), consumer.groupMetadata());
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
            consumer.assign(List.of(part));
            consumer.seekToBeginning(List.of(part));
            List<String> found = read(consumer, 3).stream().map(record -> new String(record.value())).collect(Collectors.toList());
            equal(found, List.of("0", "2", "4"));
            equal(consumer.committed(Set.of(part)).get(part).offset(), 4L);
        }
    }

    static void topics() throws Exception {
        String topic = create("topics", 2, "cleanup.policy", "compact");
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        equal(described.partitions().size(), 4);
        equal(admin.listTopics().names().get().contains(topic), true);
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, 0, START_MS + number, bytes("key"), bytes("" + number))).get();
            }
        }
        TopicPartition part = new TopicPartition(topic, 0);
        equal(admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(0))).lowWatermarks().isEmpty(), false);
        Map<OffsetSpec, Long> specs = Map.of(OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 10L,
            OffsetSpec.forTimestamp(START_MS + 5), 5L, OffsetSpec.maxTimestamp(), 9L, OffsetSpec.earliestLocal(), 0L);
        for (Map.Entry<OffsetSpec, Long> spec : specs.entrySet()) {
            ListOffsetsResultInfo found = admin.listOffsets(Map.of(part, spec.getKey())).partitionResult(part).get();
            equal(found.offset(), spec.getValue());
        }
        admin.deleteTopics(List.of(topic)).all().get();
        equal(admin.listTopics().names().get().contains(topic), false);
    }

    static String value(ConfigResource resource, String name) throws Exception {
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        return config.get(name).value();
    }

    static void configs() throws Exception {
        String topic = create("configs", 1);
        String node = String.valueOf(admin.describeCluster().controller().get().id());
        ConfigResource ofTopic = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigResource ofBroker = new ConfigResource(ConfigResource.Type.BROKER, node);
        for (AlterConfigOp.OpType type : List.of(AlterConfigOp.OpType.SET, AlterConfigOp.OpType.APPEND, AlterConfigOp.OpType.SUBTRACT)) {
            String policy = type == AlterConfigOp.OpType.SET ? "compact" : "delete";
            AlterConfigOp change = new AlterConfigOp(new ConfigEntry("cleanup.policy", policy), type);
            admin.incrementalAlterConfigs(Map.of(ofTopic, List.of(change))).all().get();
        }
        equal(value(ofTopic, "cleanup.policy"), "compact");
        equal(value(ofBroker, "num.partitions"), "3");
        Collection<ConfigResource> listed = admin.listConfigResources().all().get();
        equal(listed.contains(ofTopic), true);
    }

    static void groups() throws Exception {
        String topic = create("groups", 1);
        String group = prefix + "-groups";
        TopicPartition part = new TopicPartition(topic, 0);
        admin.alterConsumerGroupOffsets(group, Map.of(part, new OffsetAndMetadata(5))).all().get();
        equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part).offset(), 5L);
        Set<String> ids = admin.listGroups().all().get().stream().map(listed -> listed.groupId()).collect(Collectors.toSet());
        equal(ids.contains(group), true);
        equal(admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState().toString(), "Empty");
        equal(admin.describeClassicGroups(List.of(group)).all().get().get(group).state().toString(), "Empty");
        admin.deleteConsumerGroupOffsets(group, Set.of(part)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    static void directoriesAndProducers() throws Exception {
        String topic = create("directories", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        int node = admin.describeCluster().controller().get().id();
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            producer.send(new ProducerRecord<>(topic, bytes("value"))).get();
            equal(admin.describeProducers(List.of(part)).all().get().get(part).activeProducers().size(), 1);
        }
        equal(admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).size(), 1);
        String home = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).keySet().iterator().next();
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, node);
        ReplicaLogDirInfo info = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
        equal(info.getCurrentReplicaLogDir(), home);
        admin.alterReplicaLogDirs(Map.of(replica, home)).all().get();
    }

    static void cluster() throws Exception {
        equal(admin.describeCluster().nodes().get().size(), 1);
        equal(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"), true);
        equal(admin.listPartitionReassignments().reassignments().get(), Map.of());
        String topic = create("elections", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        Optional<Throwable> result = admin.electLeaders(ElectionType.PREFERRED, Set.of(part)).partitions().get().get(part);
        equal(result.get().getClass(), ElectionNotNeededException.class);
        int node = admin.describeCluster().controller().get().id();
        admin.alterPartitionReassignments(Map.of(part, Optional.of(
            new org.apache.kafka.clients.admin.NewPartitionReassignment(List.of(node))))).all().get();
    }

    static void off() throws Exception {
        fails(SecurityDisabledException.class, () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        equal(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get(), Map.of());
        equal(admin.describeUserScramCredentials().all().get(), Map.of());
        equal(admin.describeMetadataQuorum().quorumInfo().get().leaderId(), admin.describeCluster().controller().get().id());
    }
}
