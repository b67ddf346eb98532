// Times Apache Kafka's own assignors on a scenario file written by bench/assignors.py, for a ratio in the same run.
//
// Output, one line per run: "run <first s> <second s> <cpu s> <wire s> <checksum of the first> <checksum of the second>".

import java.io.BufferedReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class AssignorBench {
    static final int GENERATION = 1;
    static final Map<String, List<PartitionInfo>> partitions = new HashMap<>();
    static final List<List<String>> shapes = new ArrayList<>();
    static final List<String> members = new ArrayList<>();
    static final List<Integer> shapeOf = new ArrayList<>();
    // Per member, what it does before the second assignment: "claim", "forget" or "leave".
    static final List<String> then = new ArrayList<>();
    static final Map<String, Integer> topicIndex = new HashMap<>();

    public static void main(String[] args) throws Exception {
        read(Path.of(args[0]));
        String name = args[1];
        int runs = Integer.parseInt(args[2]);
        for (int run = 0; run < runs; run++)
            run(name);
    }

    static void read(Path path) throws Exception {
        Node[] nodes = {new Node(0, "localhost", 9092)};
        List<String> topics = new ArrayList<>();
        try (BufferedReader reader = Files.newBufferedReader(path)) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                String[] words = line.split(" ");
                if (words[0].equals("topic")) {
                    List<PartitionInfo> infos = new ArrayList<>();
                    for (int p = 0; p < Integer.parseInt(words[2]); p++)
                        infos.add(new PartitionInfo(words[1], p, nodes[0], nodes, nodes));
                    partitions.put(words[1], infos);
                    topicIndex.put(words[1], topics.size());
                    topics.add(words[1]);
                } else if (words[0].equals("shape")) {
                    List<String> shape = new ArrayList<>();
                    for (int i = 1; i < words.length; i++)
                        shape.add(topics.get(Integer.parseInt(words[i])));
                    shapes.add(shape);
                } else {
                    members.add(words[1]);
                    shapeOf.add(Integer.parseInt(words[2]));
                    then.add(words[3]);
                }
            }
        }
    }

    // Kafka's entry point fills this map by walking a set of the subscribed topics, which decides the order of its buckets.
    static Map<String, List<PartitionInfo>> wanted(Map<String, Subscription> subscriptions) {
        Set<String> subscribed = new HashSet<>();
        for (Subscription subscription : subscriptions.values())
            subscribed.addAll(subscription.topics());
        Map<String, List<PartitionInfo>> found = new HashMap<>();
        subscribed.forEach(topic -> found.put(topic, partitions.get(topic)));
        return found;
    }

    static AbstractPartitionAssignor make(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    static void run(String name) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        AbstractPartitionAssignor assignor = make(name);
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (int i = 0; i < members.size(); i++)
            subscriptions.put(members.get(i), new Subscription(shapes.get(shapeOf.get(i))));

        Map<String, List<PartitionInfo>> known = wanted(subscriptions);
        System.gc();
        long cpu = -threads.getCurrentThreadCpuTime();
        long first = -System.nanoTime();
        Map<String, List<TopicPartition>> assigned = assignor.assignPartitions(known, subscriptions);
        first += System.nanoTime();
        cpu += threads.getCurrentThreadCpuTime();
        long firstSum = checksum(assigned);

        Map<String, Subscription> again = new HashMap<>();
        for (int i = 0; i < members.size(); i++) {
            String member = members.get(i);
            List<String> topics = shapes.get(shapeOf.get(i));
            if (then.get(i).equals("forget"))
                again.put(member, new Subscription(topics));
            else if (then.get(i).equals("claim"))
                again.put(member, claim(name, topics, assigned.get(member)));
        }
        assigned = null;
        known = wanted(again);
        System.gc();
        cpu -= threads.getCurrentThreadCpuTime();
        long second = -System.nanoTime();
        assigned = assignor.assignPartitions(known, again);
        second += System.nanoTime();
        cpu += threads.getCurrentThreadCpuTime();
        long secondSum = checksum(assigned);

        long wire = -System.nanoTime();
        long bytes = 0;
        for (List<TopicPartition> own : assigned.values())
            bytes += ConsumerProtocol.serializeAssignment(new Assignment(own)).remaining();
        wire += System.nanoTime();
        System.out.println("run " + first / 1e9 + " " + second / 1e9 + " " + cpu / 1e9 + " " + wire / 1e9 + " "
            + firstSum + " " + secondSum + " " + bytes);
    }

    static Subscription claim(String name, List<String> topics, List<TopicPartition> own) {
        if (name.equals("sticky")) {
            StickyAssignor member = new StickyAssignor();
            member.onAssignment(new Assignment(own), new ConsumerGroupMetadata("group", GENERATION, "member", Optional.empty()));
            return new Subscription(topics, member.subscriptionUserData(Collections.emptySet()),
                Collections.emptyList(), GENERATION, Optional.empty());
        }
        return new Subscription(topics, null, own, GENERATION, Optional.empty());
    }

    // Depends on who got what and on the order of every list, not on the order of members.
    static long checksum(Map<String, List<TopicPartition>> assigned) {
        long sum = 0;
        for (Map.Entry<String, List<TopicPartition>> entry : new TreeMap<>(assigned).entrySet()) {
            sum = sum * 31 + entry.getKey().hashCode();
            for (TopicPartition partition : entry.getValue())
                sum = sum * 31 + topicIndex.get(partition.topic()) * 1_000_003L + partition.partition();
        }
        return sum;
    }
}
