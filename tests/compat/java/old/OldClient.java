// A producer, consumers, transactions and admin calls with whatever release of the Java client is on the class path.
//
// Compiled once, against a release in the middle; a call that a release does not have (yet, or any more) is left out and said.

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
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

public class OldClient {
    static final long DEADLINE_MS = 30_000;
    static final String CLIENT_ID = "older Java";
    static String address;
    static String prefix;
    static AdminClient admin;
    static boolean isSound = true;

    interface Check {
        void run() throws Exception;
    }

    public static boolean run(String bootstrap, String name) throws Exception {
        address = bootstrap;
        prefix = name;
        admin = AdminClient.create(settings());
        try {
            check("topics", OldClient::topics);
            check("produce and consume", OldClient::produceAndConsume);
            check("offsets by time", OldClient::offsets);
            check("a group", OldClient::group);
            check("a static member", OldClient::staticMember);
            check("transactions", OldClient::transactions);
            check("groups of the admin", () -> where("it", OldClient::groups));
            check("configs", OldClient::configs);
            check("directories", OldClient::directories);
            check("elections", OldClient::elections);
            check("off", OldClient::off);
            check("deletion", OldClient::deletion);
        } finally {
            admin.close();
        }
        return isSound;
    }

    static void check(String what, Check check) {
        try {
            check.run();
            System.out.println("  " + what);
        } catch (Throwable error) {
            isSound = false;
            System.out.println("  " + what + " FAILED: " + error);
            error.printStackTrace(System.out);
        }
    }

    // A call that other releases do not have.
    static void where(String what, Check check) throws Exception {
        try {
            check.run();
        } catch (LinkageError | ReflectiveOperationException error) {
            System.out.println("    without " + what);
        }
    }

    static void equal(Object found, Object expected) {
        if (!expected.equals(found)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    static void fails(String error, Check check) throws Exception {
        try {
            check.run();
        } catch (ExecutionException wrapped) {
            equal(wrapped.getCause().getClass().getSimpleName(), error);
            return;
        }
        throw new AssertionError("did not fail with " + error);
    }

    static Properties settings(Object... given) {
        Properties values = new Properties();
        values.put("bootstrap.servers", address);
        values.put("client.id", CLIENT_ID);
        values.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        values.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        values.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        values.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        values.put("auto.offset.reset", "earliest");
        values.put("enable.auto.commit", "false");
        for (int at = 0; at < given.length; at += 2) {
            values.put(given[at].toString(), given[at + 1].toString());
        }
        return values;
    }

    static String topic(String name, int partitions) throws Exception {
        String topic = prefix + "-" + name;
        admin.createTopics(Collections.singleton(new NewTopic(topic, partitions, (short) 1))).all().get();
        return topic;
    }

    static List<String> values(int count) {
        List<String> values = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            values.add("value-" + (1000 + at));
        }
        return values;
    }

    static void send(String topic, int count, Object... given) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(given))) {
            send(producer, topic, count);
        }
    }

    static void send(KafkaProducer<String, String> producer, String topic, int count) {
        for (String value : values(count)) {
            producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + Integer.parseInt(value.substring(6)), value, value));
        }
        producer.flush();
    }

    static List<String> read(KafkaConsumer<String, String> consumer, int count) {
        List<String> found = new ArrayList<>();
        long began = System.nanoTime();
        long beganMs = System.currentTimeMillis();
        int polls = 0;
        while (found.size() < count && System.nanoTime() - began < DEADLINE_MS * 1_000_000) {
            polls++;
            for (ConsumerRecord<String, String> record : poll(consumer, 200)) {
                found.add(record.value());
            }
        }
        if (found.size() < count) {
            // Whether the client asked and got nothing, or this process or the machine's clock stood still.
            long tookMs = (System.nanoTime() - began) / 1_000_000;
            long clockMs = System.currentTimeMillis() - beganMs;
            throw new AssertionError(found.size() + " of " + count + " records after " + polls + " polls in " + tookMs
                + " ms (" + clockMs + " by the clock); position " + positions(consumer));
        }
        return found;
    }

    static String positions(KafkaConsumer<String, String> consumer) {
        StringBuilder text = new StringBuilder();
        for (TopicPartition part : consumer.assignment()) {
            text.append(part).append('@').append(consumer.position(part)).append(' ');
        }
        return text.toString();
    }

    static ConsumerRecords<String, String> poll(KafkaConsumer<String, String> consumer, long waitMs) {
        try {
            return consumer.poll(Duration.ofMillis(waitMs));
        } catch (NoSuchMethodError before2_0) {
            return consumer.poll(waitMs);
        }
    }

    static void topics() throws Exception {
        String topic = topic("topics", 1);
        fails("TopicExistsException", () -> topic("topics", 1));
        equal(admin.listTopics().names().get().contains(topic), true);
        where("describeTopics by values", () -> equal(admin.describeTopics(Collections.singleton(topic)).values().get(topic).get().partitions().size(), 1));
        where("createPartitions", () -> {
            Map<String, NewPartitions> more = new HashMap<>();
            more.put(topic, NewPartitions.increaseTo(3));
            admin.createPartitions(more).all().get();
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings())) {
                equal(producer.partitionsFor(topic).size(), 3);
            }
        });
        equal(admin.describeCluster().nodes().get().size(), 1);
    }

    static void produceAndConsume() throws Exception {
        String topic = topic("records", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        send(topic, 50, "acks", "all", "enable.idempotence", "true");
        send(topic, 50, "acks", "1", "enable.idempotence", "false", "compression.type", "gzip");
        // Nobody waits for records without acks: a connection closed with an answer unread takes along those still under way.
        Properties hasty = settings("acks", "0", "enable.idempotence", "false", "retries", "0");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(hasty);
             KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings())) {
            send(producer, topic, 10);
            consumer.assign(Collections.singleton(part));
            consumer.seekToBeginning(Collections.singleton(part));
            List<String> expected = new ArrayList<>(values(50));
            expected.addAll(values(50));
            expected.addAll(values(10));
            equal(read(consumer, 110), expected);
            consumer.seek(part, 105);
            equal(read(consumer, 5), values(10).subList(5, 10));
            equal(consumer.position(part), 110L);
        }
        where("deleteRecords", () -> {
            Map<TopicPartition, RecordsToDelete> before = new HashMap<>();
            before.put(part, RecordsToDelete.beforeOffset(40));
            equal(admin.deleteRecords(before).lowWatermarks().get(part).get().lowWatermark(), 40L);
        });
    }

    static void offsets() throws Exception {
        String topic = topic("times", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        send(topic, 20);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings("isolation.level", "read_committed"))) {
            equal(consumer.beginningOffsets(Collections.singleton(part)).get(part), 0L);
            equal(consumer.endOffsets(Collections.singleton(part)).get(part), 20L);
            equal(consumer.offsetsForTimes(Collections.singletonMap(part, 1_700_000_001_007L)).get(part).offset(), 7L);
            equal(consumer.listTopics().containsKey(topic), true);
        }
        where("listOffsets", () -> equal(
            admin.listOffsets(Collections.singletonMap(part, OffsetSpec.latest())).partitionResult(part).get().offset(), 20L));
    }

    static void group() throws Exception {
        String topic = topic("group", 4);
        Set<TopicPartition> all = new HashSet<>();
        for (int at = 0; at < 4; at++) {
            all.add(new TopicPartition(topic, at));
        }
        send(topic, 30);
        Properties config = settings("group.id", prefix + "-group", "session.timeout.ms", 10_000, "heartbeat.interval.ms", 100);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> one = new KafkaConsumer<>(config)) {
            one.subscribe(Collections.singleton(topic));
            equal(read(one, 30), values(30));
            one.commitSync(Collections.singletonMap(part, new OffsetAndMetadata(12, "note")));
            where("committed of one", () -> equal(one.committed(part).offset(), 12L));
            where("committed of several", () -> equal(one.committed(Collections.singleton(part)).get(part).metadata(), "note"));
            try (KafkaConsumer<String, String> two = new KafkaConsumer<>(config)) {
                two.subscribe(Collections.singleton(topic));
                long deadline = System.currentTimeMillis() + DEADLINE_MS;
                while (one.assignment().size() != 2 || two.assignment().size() != 2) {
                    poll(one, 50);
                    poll(two, 50);
                    equal(System.currentTimeMillis() < deadline, true);
                }
                Set<TopicPartition> both = new HashSet<>(one.assignment());
                both.addAll(two.assignment());
                equal(both, all);
            }
        }
        try (KafkaConsumer<String, String> next = new KafkaConsumer<>(config)) {
            next.subscribe(Collections.singleton(topic));
            equal(read(next, 18), values(30).subList(12, 30));
        }
    }

    static void staticMember() throws Exception {
        String topic = topic("static", 1);
        send(topic, 5);
        Properties config = settings("group.id", prefix + "-static", "group.instance.id", "instance", "session.timeout.ms", 10_000);
        for (int round = 0; round < 2; round++) {
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
                consumer.subscribe(Collections.singleton(topic));
                equal(read(consumer, 5), values(5));
            }
        }
    }

    static void transactions() throws Exception {
        String topic = topic("transactions", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        Map<TopicPartition, OffsetAndMetadata> offsets = Collections.singletonMap(part, new OffsetAndMetadata(3));
        String group = prefix + "-transactional-group";
        Properties readCommitted = settings("group.id", group, "isolation.level", "read_committed");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings("transactional.id", prefix + "-id"));
             KafkaConsumer<String, String> consumer = new KafkaConsumer<>(readCommitted)) {
            producer.initTransactions();
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "round " + round));
                if (round % 2 == 1) {
                    producer.flush();
                    producer.abortTransaction();
                    continue;
                }
                try {
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                } catch (LinkageError error) {
                    producer.sendOffsetsToTransaction(offsets, group);
                }
                producer.commitTransaction();
            }
            consumer.assign(Collections.singleton(part));
            consumer.seek(part, 0);
            equal(read(consumer, 2), Arrays.asList("round 0", "round 2"));
            equal(consumer.position(part) > 4, true);
        }
        where("listConsumerGroupOffsets", () -> equal(
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part).offset(), 3L));
        where("fencing by the admin", () -> admin.fenceProducers(Collections.singleton(prefix + "-id")).all().get());
        where("the abort of a transaction by its marker", OldClient::marker);
    }

    static void marker() throws Exception {
        String topic = topic("marker", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings("transactional.id", prefix + "-marker"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "left open")).get();
            ProducerState state = admin.describeProducers(Collections.singleton(part)).all().get().get(part).activeProducers().get(0);
            equal(state.currentTransactionStartOffset().getAsLong(), 0L);
            admin.abortTransaction(new AbortTransactionSpec(
                part, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
            state = admin.describeProducers(Collections.singleton(part)).all().get().get(part).activeProducers().get(0);
            equal(state.currentTransactionStartOffset().isPresent(), false);
        }
    }

    static void groups() throws Exception {
        String group = prefix + "-admin-group";
        String topic = topic("groups", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        Properties config = settings("group.id", group);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
            consumer.assign(Collections.singleton(part));
            consumer.commitSync(Collections.singletonMap(part, new OffsetAndMetadata(7)));
        }
        equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part).offset(), 7L);
        equal(admin.listConsumerGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group)), true);
        equal(admin.describeConsumerGroups(Collections.singleton(group)).all().get().get(group).members().size(), 0);
        admin.deleteConsumerGroups(Collections.singleton(group)).all().get();
    }

    static void configs() throws Exception {
        String topic = topic("configs", 1);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        equal(value(resource, "cleanup.policy"), "delete");
        where("alterConfigs", () -> {
            Collection<ConfigEntry> entries = Collections.singleton(new ConfigEntry("retention.ms", "12345"));
            admin.alterConfigs(Collections.singletonMap(resource, new Config(entries))).all().get();
            equal(value(resource, "retention.ms"), "12345");
        });
        where("incrementalAlterConfigs", () -> {
            AlterConfigOp set = new AlterConfigOp(new ConfigEntry("segment.ms", "54321"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Collections.singletonMap(resource, Collections.singleton(set))).all().get();
            equal(value(resource, "segment.ms"), "54321");
        });
        where("listClientMetricsResources", () -> equal(admin.listClientMetricsResources().all().get().size(), 0));
    }

    static String value(ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource).get(name).value();
    }

    static void directories() throws Exception {
        String topic = topic("directories", 1);
        int node = admin.describeCluster().controller().get().id();
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, node);
        where("describeLogDirs", () -> equal(admin.describeLogDirs(Collections.singleton(node)).all().get().size(), 1));
        where("directories of replicas", () -> {
            String home = admin.describeReplicaLogDirs(Collections.singleton(replica)).all().get().get(replica).getCurrentReplicaLogDir();
            admin.alterReplicaLogDirs(Collections.singletonMap(replica, home)).all().get();
        });
    }

    static void elections() throws Exception {
        String topic = topic("elections", 1);
        TopicPartition part = new TopicPartition(topic, 0);
        where("electPreferredLeaders", () -> {
            Object result = AdminClient.class.getMethod("electPreferredLeaders", Collection.class).invoke(admin, Collections.singleton(part));
            Object future = Class.forName("org.apache.kafka.clients.admin.ElectPreferredLeadersResult", true, OldClient.class.getClassLoader())
                .getMethod("partitionResult", TopicPartition.class).invoke(result, part);
            try {
                ((org.apache.kafka.common.KafkaFuture<?>) future).get();
            } catch (ExecutionException error) {
                // Older ones do not know the code of the latter, which Apache Kafka sends them all the same.
                List<String> expected = Arrays.asList("UnknownServerException", "ElectionNotNeededException");
                equal(expected.contains(error.getCause().getClass().getSimpleName()), true);
            }
        });
        where("electLeaders", () -> {
            Map<TopicPartition, Optional<Throwable>> results = admin.electLeaders(ElectionType.PREFERRED, Collections.singleton(part)).partitions().get();
            equal(results.get(part).get().getClass().getSimpleName(), "ElectionNotNeededException");
        });
        where("listPartitionReassignments", () -> equal(admin.listPartitionReassignments().reassignments().get().size(), 0));
    }

    static void off() throws Exception {
        where("describeAcls", () -> fails("SecurityDisabledException", () -> admin.describeAcls(AclBindingFilter.ANY).values().get()));
        where("patterns of ACLs", () -> {
            AclBinding binding = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, prefix, PatternType.LITERAL),
                new AccessControlEntry("User:someone", "*", AclOperation.READ, AclPermissionType.ALLOW));
            fails("SecurityDisabledException", () -> admin.createAcls(Collections.singleton(binding)).all().get());
            fails("SecurityDisabledException", () -> admin.deleteAcls(Collections.singleton(binding.toFilter())).all().get());
        });
        where("client quotas", () -> {
            equal(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size(), 0);
            ClientQuotaEntity entity = new ClientQuotaEntity(Collections.singletonMap("client-id", prefix));
            ClientQuotaAlteration alteration = new ClientQuotaAlteration(
                entity, Collections.singleton(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9)));
            admin.alterClientQuotas(Collections.singleton(alteration)).all().get();
            ClientQuotaAlteration back = new ClientQuotaAlteration(
                entity, Collections.singleton(new ClientQuotaAlteration.Op("producer_byte_rate", null)));
            admin.alterClientQuotas(Collections.singleton(back)).all().get();
        });
        where("updateFeatures", () -> {
            FeatureUpdate unknown = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
            Throwable found = null;
            try {
                admin.updateFeatures(Collections.singletonMap("no.such.feature", unknown), new UpdateFeaturesOptions()).all().get();
            } catch (ExecutionException error) {
                found = error.getCause();
            }
            equal(found == null, false);
        });
    }

    static void deletion() throws Exception {
        String topic = topic("deletion", 1);
        admin.deleteTopics(Collections.singleton(topic)).all().get();
        fails("UnknownTopicOrPartitionException", () -> admin.deleteTopics(Collections.singleton(topic)).all().get());
    }
}
