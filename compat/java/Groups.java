import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InconsistentGroupProtocolException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Consumer groups of the classic protocol. */
@Execution(ExecutionMode.CONCURRENT)
public class Groups extends Suite {
    static final String EAGER = "org.apache.kafka.clients.consumer.RangeAssignor";
    static final String COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
    /** The shortest that a broker takes by default. */
    static final String SESSION_MS = "6000";

    // What the tests are made of.

    static KafkaConsumer<byte[], byte[]> inGroup(String group, String... pairs) {
        Map<String, String> all = map("group.id", group, "group.protocol", "classic", "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "heartbeat.interval.ms", "200", "session.timeout.ms", SESSION_MS,
                "fetch.max.wait.ms", "100", "partition.assignment.strategy", EAGER);
        all.putAll(map(pairs));
        if (all.get("group.protocol").equals("consumer")) {
            // The broker says how often, and who is to have what.
            all.keySet().removeAll(List.of("heartbeat.interval.ms", "session.timeout.ms", "partition.assignment.strategy"));
        }
        return consumer(all.entrySet().stream().flatMap(pair -> List.of(pair.getKey(), pair.getValue()).stream()).toArray(String[]::new));
    }

    static void eventually(BooleanSupplier condition, String what) throws Exception {
        long deadline = System.nanoTime() + (long) (TimeUnit.SECONDS.toNanos(30) * SLOWNESS);
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < deadline, "never happened: " + what);
            Thread.sleep(20);
        }
    }

    /**
     * A consumer on a thread of its own. What it has read counts as processed when its commit was acknowledged; what
     * it could not commit it reads again, or its next owner does.
     */
    static class Member implements ConsumerRebalanceListener, Runnable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Set<Integer> owned = new ConcurrentSkipListSet<>();
        final Queue<String> processed = new ConcurrentLinkedQueue<>();
        final AtomicInteger rebalances = new AtomicInteger();
        final List<Set<Integer>> revoked = new ArrayList<>();
        final CompletableFuture<Throwable> end = new CompletableFuture<>();
        volatile int generation;
        volatile GroupMembershipOperation leaving;

        Member(String topic, String group, String... pairs) {
            consumer = inGroup(group, pairs);
            consumer.subscribe(List.of(topic), this);
            begin();
        }

        Member(SubscriptionPattern topics, String group, String... pairs) {
            consumer = inGroup(group, pairs);
            consumer.subscribe(topics, this);
            begin();
        }

        Member(Pattern topics, String group, String... pairs) {
            consumer = inGroup(group, pairs);
            consumer.subscribe(topics, this);
            begin();
        }

        private void begin() {
            Thread thread = new Thread(this);
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (leaving == null) {
                    process(consumer.poll(Duration.ofMillis(100)));
                }
                consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)).withGroupMembershipOperation(leaving));
                end.complete(null);
            } catch (Throwable failure) {
                end.complete(failure);
            }
        }

        void process(ConsumerRecords<byte[], byte[]> records) {
            if (records.isEmpty()) {
                return;
            }
            try {
                consumer.commitSync();
                records.forEach(record -> processed.add(text(record.value())));
            } catch (CommitFailedException | RebalanceInProgressException refused) {
                Set<TopicPartition> kept = consumer.assignment();
                for (TopicPartition partition : records.partitions()) {
                    if (kept.contains(partition)) {
                        consumer.seek(partition, records.records(partition).get(0).offset());
                    }
                }
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            rebalances.incrementAndGet();
            generation = consumer.groupMetadata().generationId();
            partitions.forEach(partition -> owned.add(partition.partition()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.add(new TreeSet<>(partitions.stream().map(TopicPartition::partition).toList()));
            partitions.forEach(partition -> owned.remove(partition.partition()));
        }

        void leave() throws Exception {
            endBy(GroupMembershipOperation.LEAVE_GROUP);
        }

        /** Goes without a word, as a process does that is killed. */
        void vanish() throws Exception {
            endBy(GroupMembershipOperation.REMAIN_IN_GROUP);
        }

        private void endBy(GroupMembershipOperation operation) throws Exception {
            leaving = operation;
            Throwable failure = end.get(30, TimeUnit.SECONDS);
            if (failure != null) {
                throw new AssertionError("a member failed", failure);
            }
        }
    }

    static void owns(Member member, int count) throws Exception {
        eventually(() -> {
            check(!member.end.isDone(), "a member ended: " + member.end.getNow(null));
            return member.owned.size() == count;
        }, "a member owns " + count + " partitions");
    }

    static void share(int partitions, Member... members) throws Exception {
        int least = partitions / members.length;
        eventually(() -> {
            Set<Integer> all = new HashSet<>();
            int sum = 0;
            for (Member member : members) {
                int size = member.owned.size();
                if (size < least || size > least + 1) {
                    return false;
                }
                sum += size;
                all.addAll(member.owned);
            }
            return sum == partitions && all.size() == partitions;
        }, members.length + " members share " + partitions + " partitions");
    }

    static void produceTo(String topic, int partitions, int from, int to) throws Exception {
        produce(IntStream.range(from, to).mapToObj(n -> new ProducerRecord<>(topic, n % partitions, (byte[]) null, bytes("" + n))).toList());
    }

    static void processedOnce(int count, Collection<Member> members) throws Exception {
        eventually(() -> members.stream().mapToInt(member -> member.processed.size()).sum() >= count, count + " records processed");
        List<Integer> all = members.stream().flatMap(member -> member.processed.stream()).map(Integer::valueOf).sorted().toList();
        equal(all, IntStream.range(0, count).boxed().toList(), "what all members together have processed");
    }

    static ConsumerRecords<byte[], byte[]> nextRecords(KafkaConsumer<byte[], byte[]> consumer) {
        for (int attempt = 0; attempt < 100; attempt++) {
            var records = consumer.poll(Duration.ofMillis(200));
            if (!records.isEmpty()) {
                return records;
            }
        }
        throw new AssertionError("no records came");
    }

    static long committed(String group, String topic, int partitions) throws Exception {
        try (Admin admin = admin()) {
            var offsets = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            return IntStream.range(0, partitions).mapToLong(p -> offsets.get(new TopicPartition(topic, p)).offset()).sum();
        }
    }

    static ConsumerGroupDescription describe(String group) throws Exception {
        try (Admin admin = admin()) {
            return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        }
    }

    // The tests.

    @Test
    @Tag("short")
    public void partitionsAreSharedAnewWhenMembersJoinAndLeave() throws Exception {
        for (String strategy : List.of(EAGER, COOPERATIVE)) {
            String topic = newTopic(6);
            String group = unique("group");
            String[] settings = {"partition.assignment.strategy", strategy};
            Member first = new Member(topic, group, settings);
            owns(first, 6);
            produceTo(topic, 6, 0, 300);
            Member second = new Member(topic, group, settings);
            share(6, first, second);
            produceTo(topic, 6, 300, 600);
            Member third = new Member(topic, group, settings);
            share(6, first, second, third);
            produceTo(topic, 6, 600, 900);
            second.leave();
            share(6, first, third);
            produceTo(topic, 6, 900, 1200);
            processedOnce(1200, List.of(first, second, third));
            first.leave();
            third.leave();
            equal(committed(group, topic, 6), 1200L, "committed offsets with " + strategy);
        }
    }

    @Test
    public void eagerMembersGiveUpAllAndCooperativeOnesOnlyWhatAnotherGets() throws Exception {
        for (String strategy : List.of(EAGER, COOPERATIVE)) {
            String topic = newTopic(6);
            String group = unique("group");
            Member first = new Member(topic, group, "partition.assignment.strategy", strategy);
            owns(first, 6);
            Member second = new Member(topic, group, "partition.assignment.strategy", strategy);
            share(6, first, second);
            equal(first.revoked.get(0).size(), strategy.equals(EAGER) ? 6 : 3, "revoked from the first member by " + strategy);
            first.leave();
            owns(second, 6);
            second.leave();
        }
    }

    @Test
    public void aMemberThatVanishesIsReplacedWhenItsSessionIsOver() throws Exception {
        String topic = newTopic(4);
        String group = unique("group");
        Member first = new Member(topic, group);
        Member second = new Member(topic, group);
        share(4, first, second);
        produceTo(topic, 4, 0, 100);
        processedOnce(100, List.of(first, second));
        long gone = System.nanoTime();
        second.vanish();
        owns(first, 4);
        double seconds = (System.nanoTime() - gone) / 1e9;
        check(seconds > 4 && seconds < 10, "replaced after " + seconds + " s");
        produceTo(topic, 4, 100, 200);
        processedOnce(200, List.of(first, second));
        first.leave();
    }

    @Test
    public void aStaticMemberThatComesBackInTimeCausesNoRebalance() throws Exception {
        String topic = newTopic(4);
        String group = unique("group");
        Member first = new Member(topic, group, "group.instance.id", "one", "client.id", "one");
        Member second = new Member(topic, group, "group.instance.id", "two", "client.id", "two");
        share(4, first, second);
        Set<Integer> before = new TreeSet<>(second.owned);
        int rebalances = first.rebalances.get();
        for (int round = 0; round < 2; round++) {
            second.vanish();
            produceTo(topic, 4, round * 100, round * 100 + 100);
            Member again = new Member(topic, group, "group.instance.id", "two", "client.id", "two");
            eventually(() -> again.owned.equals(before), "the same partitions as before");
            again.processed.addAll(second.processed);
            second = again;
        }
        processedOnce(200, List.of(first, second));
        equal(first.rebalances.get(), rebalances, "the other member's rebalances");
        var instances = describe(group).members().stream().map(member -> member.groupInstanceId().orElse("none")).sorted().toList();
        equal(instances, List.of("one", "two"), "instance ids");
        first.leave();
        second.leave();
    }

    @Test
    public void aStaticMemberIsFencedByAnotherOfItsName() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        Member first = new Member(topic, group, "group.instance.id", "one");
        owns(first, 2);
        Member usurper = new Member(topic, group, "group.instance.id", "one");
        owns(usurper, 2);
        Throwable failure = first.end.get(20, TimeUnit.SECONDS);
        check(failure instanceof FencedInstanceIdException, "the older one ended with " + failure);
        usurper.leave();
    }

    @Test
    public void nothingIsLostOrRepeatedWhileMembersComeAndGo() throws Exception {
        for (String strategy : List.of(EAGER, COOPERATIVE)) {
            int partitions = 8;
            int count = 8000;
            String topic = newTopic(partitions);
            String group = unique("group");
            List<Member> members = new ArrayList<>();
            List<Member> present = new ArrayList<>();
            Random random = new Random(7);
            for (int sent = 0; sent < count; sent += 500) {
                if (present.size() < 2 || present.size() < 5 && random.nextBoolean()) {
                    present.add(new Member(topic, group, "partition.assignment.strategy", strategy, "max.poll.records", "20"));
                    members.add(present.get(present.size() - 1));
                } else {
                    present.remove(random.nextInt(present.size())).leave();
                }
                produceTo(topic, partitions, sent, sent + 500);
                Thread.sleep(random.nextInt(200));
            }
            processedOnce(count, members);
            for (Member member : present) {
                member.leave();
            }
            equal(committed(group, topic, partitions), (long) count, "committed offsets with " + strategy);
        }
    }

    @Test
    @Tag("short")
    public void commitsKeepOffsetMetadataAndLeaderEpoch() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        produceTo(topic, 2, 0, 20);
        try (var consumer = inGroup(group)) {
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
            while (got.size() < 20) {
                consumer.poll(Duration.ofMillis(500)).forEach(got::add);
            }
            equal(consumer.committed(Set.of(zero, one)), nothingFor(zero, one), "committed before");
            Optional<Integer> epoch = got.get(0).leaderEpoch();
            OffsetAndMetadata wanted = new OffsetAndMetadata(4, epoch, "up to here, äöü");
            consumer.commitSync(Map.of(zero, wanted));
            equal(consumer.committed(Set.of(zero)).get(zero), wanted, "the commit");
            CompletableFuture<Map<TopicPartition, OffsetAndMetadata>> told = new CompletableFuture<>();
            consumer.commitAsync(Map.of(one, new OffsetAndMetadata(7)), (offsets, failure) -> {
                if (failure == null) {
                    told.complete(offsets);
                } else {
                    told.completeExceptionally(failure);
                }
            });
            while (!told.isDone()) {
                consumer.poll(Duration.ofMillis(50));
            }
            equal(told.get().get(one).offset(), 7L, "the asynchronous commit");
            equal(consumer.committed(Set.of(one)).get(one).metadata(), "", "metadata that was not given");
            consumer.seek(zero, 9);
            consumer.pause(List.of(one));
            equal(nextRecords(consumer).records(zero).get(0).offset(), 9L, "after a seek");
        }
        try (var consumer = inGroup(group)) {
            consumer.subscribe(List.of(topic));
            Map<Integer, Long> first = new HashMap<>();
            while (first.size() < 2) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> first.putIfAbsent(record.partition(), record.offset()));
            }
            equal(first, Map.of(0, 4L, 1, 7L), "where the next member begins");
        }
    }

    static Map<TopicPartition, OffsetAndMetadata> nothingFor(TopicPartition... partitions) {
        Map<TopicPartition, OffsetAndMetadata> none = new HashMap<>();
        for (TopicPartition partition : partitions) {
            none.put(partition, null);
        }
        return none;
    }

    @Test
    public void aConsumerThatAssignsItselfPartitionsCommitsWithoutBeingAMember() throws Exception {
        String topic = newTopic(1);
        String group = unique("group");
        TopicPartition partition = new TopicPartition(topic, 0);
        produce(topic, 10);
        try (var consumer = inGroup(group)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 5);
            nextRecords(consumer);
            consumer.commitSync();
        }
        try (var consumer = inGroup(group)) {
            consumer.assign(List.of(partition));
            equal(consumer.position(partition), 10L, "position");
        }
        equal(describe(group).isSimpleConsumerGroup(), true, "a simple group");
    }

    @Test
    public void theCommitOfAMemberThatWasTooSlowIsRefused() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        produceTo(topic, 2, 0, 10);
        try (var slow = inGroup(group, "max.poll.interval.ms", "1000")) {
            slow.subscribe(List.of(topic));
            nextRecords(slow);
            Member other = new Member(topic, group);
            owns(other, 2);
            refused(CommitFailedException.class, () -> {
                slow.commitSync();
                return null;
            });
            processedOnce(10, List.of(other));
            other.leave();
        }
    }

    @Test
    public void aMemberWithoutACommonProtocolIsRefused() throws Exception {
        String topic = newTopic(2);
        String group = unique("group");
        Member first = new Member(topic, group, "partition.assignment.strategy", EAGER);
        owns(first, 2);
        try (var other = inGroup(group, "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RoundRobinAssignor")) {
            other.subscribe(List.of(topic));
            refused(InconsistentGroupProtocolException.class, () -> other.poll(Duration.ofSeconds(10)));
        }
        first.leave();
    }

    @Test
    public void aPatternFindsNewTopicsAndNewPartitions() throws Exception {
        String prefix = unique("pattern");
        create(prefix + "-a", 1, brokers());
        Member member = new Member(Pattern.compile(prefix + ".*"), unique("group"), "metadata.max.age.ms", "200");
        owns(member, 1);
        try (Admin admin = admin()) {
            admin.createPartitions(Map.of(prefix + "-a", NewPartitions.increaseTo(3))).all().get();
        }
        owns(member, 3);
        create(prefix + "-b", 5, brokers());
        owns(member, 5);
        member.leave();
    }

    /** The strict broker leaves `group.initial.rebalance.delay.ms` at Kafka's default of 3 seconds. */
    @Test
    public void theFirstMembersOfAGroupWaitForEachOther() throws Exception {
        String topic = unique("java");
        try (Admin admin = Admin.create(settings("bootstrap.servers", strictBootstrap))) {
            admin.createTopics(List.of(new org.apache.kafka.clients.admin.NewTopic(topic, 4, (short) 1))).all().get();
        }
        String group = unique("group");
        long begun = System.nanoTime();
        Member first = new Member(topic, group, "bootstrap.servers", strictBootstrap);
        Member second = new Member(topic, group, "bootstrap.servers", strictBootstrap);
        share(4, first, second);
        double seconds = (System.nanoTime() - begun) / 1e9;
        check(seconds >= 3 && seconds < 15, "the first assignment came after " + seconds + " s");
        equal(List.of(first.rebalances.get(), second.rebalances.get()), List.of(1, 1), "rebalances");
        equal(List.of(first.generation, second.generation), List.of(1, 1), "generations");
        first.leave();
        second.leave();
    }
}
