import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Transactional producers, and readers of what they committed. */
@Execution(ExecutionMode.CONCURRENT)
public class Transactions extends Suite {
    static final String[] COMMITTED = {"isolation.level", "read_committed"};

    // What the tests are made of.

    static KafkaProducer<byte[], byte[]> transactional(String id, String... pairs) {
        List<String> all = new ArrayList<>(List.of("transactional.id", id, "max.block.ms", "20000"));
        all.addAll(List.of(pairs));
        KafkaProducer<byte[], byte[]> producer = producer(all.toArray(String[]::new));
        producer.initTransactions();
        return producer;
    }

    /** Whoever comes later took over, or the broker gave up. Which of the two errors it is depends on the call that is told first. */
    static void fenced(String what, Runnable call) {
        try {
            call.run();
        } catch (KafkaException failure) {
            boolean isTold = Stream.of(failure, failure.getCause())
                    .anyMatch(each -> each instanceof ProducerFencedException || each instanceof InvalidProducerEpochException);
            check(isTold, what + ": " + failure + ", caused by " + failure.getCause());
            return;
        }
        throw new AssertionError(what + ": it was not fenced");
    }

    /**
     * The values of partition 0 that a reader sees until it reaches the end of all that is there now. A transaction is complete, and
     * can be read, a moment after its end was answered: that is waited for.
     */
    static List<String> seen(String topic, String isolation) {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("isolation.level", isolation); KafkaConsumer<byte[], byte[]> other = consumer()) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = other.endOffsets(List.of(partition)).get(partition);
            List<String> found = new ArrayList<>();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (consumer.position(partition) < end) {
                check(System.nanoTime() < deadline, "the reader stays at " + consumer.position(partition) + " of " + end);
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(text(record.value())));
            }
            return found;
        }
    }

    static Map<TopicPartition, OffsetAndMetadata> next(ConsumerRecords<byte[], byte[]> records) {
        return records.partitions().stream().collect(Collectors.toMap(partition -> partition, partition -> {
            List<ConsumerRecord<byte[], byte[]>> of = records.records(partition);
            return new OffsetAndMetadata(of.get(of.size() - 1).offset() + 1);
        }));
    }

    /**
     * Reads what was committed, writes it on and commits both by one transaction, like the loop in every book. Some of its
     * transactions it aborts, and then reads the same again.
     */
    static class Loop implements Runnable, ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final KafkaProducer<byte[], byte[]> producer;
        final String from;
        final String to;
        final Random random;
        final AtomicInteger aborted = new AtomicInteger();
        final CompletableFuture<Throwable> end = new CompletableFuture<>();
        volatile boolean isLeaving;

        Loop(String from, String to, String group, String id, long seed) {
            this.from = from;
            this.to = to;
            random = new Random(seed);
            producer = transactional(id, "linger.ms", "1");
            consumer = Groups.inGroup(group, "isolation.level", "read_committed", "max.poll.records", "20", "partition.assignment.strategy", Groups.COOPERATIVE);
            consumer.subscribe(List.of(from), this);
        }

        @Override
        public void run() {
            Throwable failure = null;
            try (producer; consumer) {
                while (!isLeaving) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                    if (!records.isEmpty()) {
                        process(records);
                    }
                }
            } catch (Exception | AssertionError thrown) {
                failure = thrown;
            }
            end.complete(failure);
        }

        void process(ConsumerRecords<byte[], byte[]> records) {
            producer.beginTransaction();
            try {
                records.forEach(record -> producer.send(new ProducerRecord<>(to, record.partition(), record.key(), record.value())));
                producer.sendOffsetsToTransaction(next(records), consumer.groupMetadata());
                if (random.nextInt(4) == 0) {
                    throw new KafkaException("it changes its mind");
                }
                producer.commitTransaction();
            } catch (ProducerFencedException fenced) {
                throw fenced;
            } catch (KafkaException abortable) {
                // A rebalance took the partitions away before the offsets were sent: others process these records.
                producer.abortTransaction();
                aborted.incrementAndGet();
                consumer.assignment().forEach(partition -> {
                    OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
                    consumer.seek(partition, committed == null ? 0 : committed.offset());
                });
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
    }

    // The tests.

    @Test
    @Tag("short")
    public void whatIsCommittedIsSeenAndWhatIsAbortedIsNot() throws Exception {
        for (String codec : CODECS) {
            String topic = newTopic(1);
            List<String> all = new ArrayList<>();
            List<String> committed = new ArrayList<>();
            try (var producer = transactional(unique("t"), "compression.type", codec, "batch.size", "200")) {
                for (int round = 0; round < 6; round++) {
                    boolean commits = round % 3 != 1;
                    producer.beginTransaction();
                    for (int number = 0; number < 20; number++) {
                        String value = round + "." + number;
                        producer.send(message(topic, value));
                        all.add(value);
                        if (commits) committed.add(value);
                    }
                    if (commits) {
                        producer.commitTransaction();
                    } else {
                        producer.flush(); // An abort drops what was not sent yet.
                        producer.abortTransaction();
                    }
                }
            }
            equal(seen(topic, "read_committed"), committed, codec);
            equal(seen(topic, "read_uncommitted"), all, codec);
        }
    }

    @Test
    public void aTransactionOverManyPartitionsIsSeenWholeOrNotAtAll() throws Exception {
        String one = newTopic(5);
        String two = newTopic(3);
        try (var producer = transactional(unique("t"))) {
            for (int round = 0; round < 10; round++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 5; partition++) {
                    producer.send(new ProducerRecord<>(one, partition, null, bytes("" + round)));
                    producer.send(new ProducerRecord<>(two, partition % 3, null, bytes("" + round)));
                }
                producer.flush();
                if (round % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        Map<String, Integer> counts = new TreeMap<>();
        List<TopicPartition> all = new ArrayList<>();
        IntStream.range(0, 5).forEach(partition -> all.add(new TopicPartition(one, partition)));
        IntStream.range(0, 3).forEach(partition -> all.add(new TopicPartition(two, partition)));
        try (var consumer = consumer(COMMITTED)) {
            consumer.assign(all);
            consumer.seekToBeginning(all);
            var ends = consumer.endOffsets(all);
            Groups.eventually(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> counts.merge(text(record.value()), 1, Integer::sum));
                return all.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition));
            }, "all is read");
        }
        equal(counts, Map.of("0", 10, "2", 10, "4", 10, "6", 10, "8", 10), "records of each transaction");
    }

    @Test
    public void aReaderOfCommittedRecordsWaitsForTheOldestOpenTransaction() throws Exception {
        String topic = newTopic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var open = transactional(unique("t")); var other = transactional(unique("t")); var consumer = consumer(COMMITTED); var admin = admin()) {
            open.beginTransaction();
            open.send(message(topic, "open")).get();
            other.beginTransaction();
            other.send(message(topic, "committed"));
            other.commitTransaction();
            produce(topic, 1);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            equal(consumer.poll(Duration.ofMillis(500)).count(), 0, "records before the oldest transaction ends");
            equal(consumer.endOffsets(List.of(partition)).get(partition), 0L, "the last stable offset");
            var stable = admin.listOffsets(Map.of(partition, OffsetSpec.latest()), new ListOffsetsOptions(IsolationLevel.READ_COMMITTED));
            equal(stable.partitionResult(partition).get().offset(), 0L, "as its admin sees it");
            equal(seen(topic, "read_uncommitted"), List.of("open", "committed", "0"), "to who does not wait");
            open.commitTransaction();
            List<String> found = new ArrayList<>();
            Groups.eventually(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(text(record.value())));
                return found.size() == 3;
            }, "all is read");
            equal(found, List.of("open", "committed", "0"), "in the order of the log");
        }
    }

    @Test
    @Tag("short")
    public void aSecondProducerOfTheSameIdFencesTheFirst() throws Exception {
        String topic = newTopic(1);
        String id = unique("t");
        try (var first = transactional(id)) {
            first.beginTransaction();
            first.send(message(topic, "of the first")).get();
            try (var second = transactional(id)) {
                fenced("a commit", first::commitTransaction);
                second.beginTransaction();
                second.send(message(topic, "of the second"));
                second.commitTransaction();
            }
            fenced("a new transaction", first::beginTransaction);
        }
        equal(seen(topic, "read_committed"), List.of("of the second"), "values");
    }

    @Test
    public void whoComesBackAfterACrashFindsItsTransactionAborted() throws Exception {
        String topic = newTopic(1);
        String id = unique("t");
        for (int round = 0; round < 3; round++) {
            var producer = transactional(id);
            producer.beginTransaction();
            producer.send(message(topic, "lost " + round)).get();
            // Without a word, as a process that dies.
            producer.close(Duration.ZERO);
        }
        try (var last = transactional(id)) {
            last.beginTransaction();
            last.send(message(topic, "kept"));
            last.commitTransaction();
        }
        equal(seen(topic, "read_committed"), List.of("kept"), "values");
    }

    @Test
    public void aTransactionThatTakesTooLongIsAborted() throws Exception {
        String topic = newTopic(1);
        try (var slow = transactional(unique("t"), "transaction.timeout.ms", "1000"); var admin = admin()) {
            slow.beginTransaction();
            slow.send(message(topic, "late")).get();
            TopicPartition partition = new TopicPartition(topic, 0);
            var committed = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
            Groups.eventually(() -> {
                try {
                    return admin.listOffsets(Map.of(partition, OffsetSpec.latest()), committed).partitionResult(partition).get().offset() == 2;
                } catch (Exception failure) {
                    throw new AssertionError(failure);
                }
            }, "the broker aborts it");
            try {
                slow.send(message(topic, "later")).get();
                slow.commitTransaction();
                throw new AssertionError("it was committed");
            } catch (ExecutionException | KafkaException expected) {
                slow.abortTransaction();
            }
            // By the second version of the protocol it may go on.
            slow.beginTransaction();
            slow.send(message(topic, "in time"));
            slow.commitTransaction();
        }
        equal(seen(topic, "read_committed"), List.of("in time"), "values");
    }

    @Test
    public void aLoopProcessesEachRecordOnceThroughAbortsAndRebalances() throws Exception {
        String from = newTopic(4);
        String to = newTopic(4);
        String group = unique("loop");
        int count = 4_000;
        var feeder = new Thread(() -> {
            try (var producer = transactional(unique("feeder"), "linger.ms", "5")) {
                for (int batch = 0; batch < 40; batch++) {
                    // Each record is sent twice, and once it is aborted.
                    for (boolean commits : new boolean[] {batch % 2 == 0, batch % 2 != 0}) {
                        producer.beginTransaction();
                        for (int number = 100 * batch; number < 100 * (batch + 1); number++) {
                            producer.send(new ProducerRecord<>(from, number % 4, null, bytes("" + number)));
                        }
                        if (commits) producer.commitTransaction();
                        else producer.abortTransaction();
                    }
                }
            }
        });
        feeder.start();
        List<Loop> loops = new ArrayList<>();
        Queue<Long> read = new ConcurrentLinkedQueue<>();
        Map<Integer, Integer> counts = new HashMap<>();
        try (var consumer = consumer(COMMITTED)) {
            List<TopicPartition> partitions = IntStream.range(0, 4).mapToObj(partition -> new TopicPartition(to, partition)).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Groups.eventually(() -> {
                // One after the other joins, and the first one leaves.
                if (loops.size() < 3 && read.size() >= loops.size() * count / 5) {
                    Loop loop = new Loop(from, to, group, group + "-" + loops.size(), loops.size());
                    loops.add(loop);
                    new Thread(loop).start();
                }
                loops.get(0).isLeaving = read.size() > count * 3 / 5;
                for (var record : consumer.poll(Duration.ofMillis(50))) {
                    counts.merge(Integer.valueOf(text(record.value())), 1, Integer::sum);
                    read.add(record.offset());
                }
                loops.forEach(loop -> check(loop.isLeaving || !loop.end.isDone(), "a loop ended: " + loop.end.getNow(null)));
                return read.size() >= count;
            }, "every record comes out");
            feeder.join();
            loops.forEach(loop -> loop.isLeaving = true);
            for (Loop loop : loops) {
                Throwable failure = loop.end.get(30, TimeUnit.SECONDS);
                check(failure == null, "a loop failed: " + failure);
            }
            consumer.poll(Duration.ofMillis(500)).forEach(record -> counts.merge(Integer.valueOf(text(record.value())), 1, Integer::sum));
        }
        equal(counts, IntStream.range(0, count).boxed().collect(Collectors.toMap(number -> number, number -> 1)), "how often each came out");
        check(loops.stream().mapToInt(loop -> loop.aborted.get()).sum() > 0, "some transactions were aborted");
        try (var consumer = Groups.inGroup(group, COMMITTED)) {
            var partitions = IntStream.range(0, 4).mapToObj(partition -> new TopicPartition(from, partition)).collect(Collectors.toSet());
            var ends = consumer.endOffsets(partitions);
            // What is aborted in the end is passed over by nobody's commit.
            consumer.committed(partitions).forEach((partition, committed) ->
                    check(committed.offset() <= ends.get(partition) && committed.offset() > ends.get(partition) - 210, partition + " " + committed));
        }
    }

    @Test
    public void offsetsOfAStaleMemberAreRefusedAndTheTransactionCanBeAborted() throws Exception {
        String topic = newTopic(1);
        String group = unique("stale");
        var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1));
        ConsumerGroupMetadata stale;
        try (var leaver = Groups.inGroup(group)) {
            leaver.subscribe(List.of(topic));
            Groups.eventually(() -> !leaver.poll(Duration.ofMillis(50)).isEmpty() || !leaver.assignment().isEmpty(), "it has the partition");
            stale = leaver.groupMetadata();
        }
        Groups.Member member = new Groups.Member(topic, group);
        Groups.eventually(() -> !member.owned.isEmpty(), "its successor has the partition");
        try (var producer = transactional(unique("t"))) {
            producer.beginTransaction();
            producer.send(message(topic, "never seen")).get();
            try {
                producer.sendOffsetsToTransaction(offsets, stale);
                producer.commitTransaction();
                throw new AssertionError("they were taken");
            } catch (CommitFailedException expected) {
                producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.send(message(topic, "seen"));
            producer.commitTransaction();
        }
        member.leave();
        equal(seen(topic, "read_committed"), List.of("seen"), "values");
    }

    @Test
    public void largeTransactionsAndManyOfThem() throws Exception {
        String topic = newTopic(1);
        int large = 50_000;
        try (var producer = transactional(unique("t"), "linger.ms", "5")) {
            producer.beginTransaction();
            IntStream.range(0, large).forEach(number -> producer.send(message(topic, "l" + number)));
            producer.commitTransaction();
            for (int round = 0; round < 300; round++) {
                producer.beginTransaction();
                producer.send(message(topic, "s" + round));
                producer.commitTransaction();
            }
        }
        List<String> expected = Stream.concat(
                IntStream.range(0, large).mapToObj(number -> "l" + number), IntStream.range(0, 300).mapToObj(number -> "s" + number)).toList();
        equal(seen(topic, "read_committed"), expected, "values");
    }
}
