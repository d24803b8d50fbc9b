import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.RecordDeserializationException;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/**
 * Share groups (KIP-932) of the Java client against one broker. All tests run at once, since they mostly wait.
 */
@Execution(ExecutionMode.CONCURRENT)
public class Sharing extends Suite {
    static final Duration SOON = Duration.ofMillis(200);
    static final int PATIENCE_S = 40;

    // What the tests are made of.

    /** A name for a group that begins with the first records, with these settings. */
    static String newGroup(String... configs) throws Exception {
        String group = unique("share");
        configure(group, "share.auto.offset.reset", "earliest");
        configure(group, configs);
        return group;
    }

    static void configure(String group, String... configs) throws Exception {
        if (configs.length == 0) {
            return;
        }
        List<AlterConfigOp> set = new ArrayList<>();
        map(configs).forEach((name, value) -> set.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        try (Admin admin = admin()) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), set)).all().get();
        }
    }

    /** A consumer of a share group, and what becomes of what it says. */
    static class Sharer implements AutoCloseable {
        final KafkaShareConsumer<byte[], byte[]> consumer;

        Sharer(String group, Collection<String> topics, String... settings) {
            Map<String, Object> all = settings("group.id", group, "fetch.max.wait.ms", "200", "retry.backoff.max.ms", "200");
            all.putAll(map(settings));
            consumer = new KafkaShareConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.subscribe(topics);
        }

        /** What comes at once, or nothing. */
        List<ConsumerRecord<byte[], byte[]>> poll(Duration atMost) {
            List<ConsumerRecord<byte[], byte[]>> all = new ArrayList<>();
            consumer.poll(atMost).forEach(all::add);
            return all;
        }

        /** Some records; there must be some. */
        List<ConsumerRecord<byte[], byte[]>> some() {
            for (long deadline = deadline(PATIENCE_S); System.nanoTime() < deadline; ) {
                var records = poll(SOON);
                if (!records.isEmpty()) {
                    return records;
                }
            }
            throw new AssertionError("no record came");
        }

        /** So many records, each accepted. */
        List<ConsumerRecord<byte[], byte[]>> accept(int count) {
            List<ConsumerRecord<byte[], byte[]>> all = new ArrayList<>();
            while (all.size() < count) {
                var records = some();
                all.addAll(records);
                decide(records, AcknowledgeType.ACCEPT);
            }
            equal(all.size(), count, "records");
            return all;
        }

        void decide(List<ConsumerRecord<byte[], byte[]>> records, AcknowledgeType type) {
            records.forEach(record -> consumer.acknowledge(record, type));
            equal(commit(), "[]", "problems of " + type);
        }

        /** What was wrong with what was decided. */
        String commit() {
            Map<TopicIdPartition, Optional<KafkaException>> told = consumer.commitSync(Duration.ofSeconds(PATIENCE_S));
            return told.values().stream().flatMap(Optional::stream).map(problem -> problem.getClass().getSimpleName()).toList().toString();
        }

        void nothingComes(int ms) {
            for (long deadline = System.nanoTime() + ms * 1_000_000L; System.nanoTime() < deadline; ) {
                equal(values(poll(SOON)), List.of(), "what should not come");
            }
        }

        @Override
        public void close() {
            consumer.close(Duration.ofSeconds(PATIENCE_S));
        }
    }

    /** One that has to say what becomes of each record. */
    static Sharer explicit(String group, String topic, String... settings) {
        String[] all = Stream.concat(Stream.of("share.acknowledgement.mode", "explicit"), Stream.of(settings)).toArray(String[]::new);
        return new Sharer(group, List.of(topic), all);
    }

    static long deadline(int seconds) {
        return System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
    }

    /** Records of one batch each. */
    static void write(String topic, String... values) throws Exception {
        try (var producer = producer()) {
            for (String value : values) {
                producer.send(message(topic, value)).get();
            }
        }
    }

    /** Records of one batch, with these numbers. */
    static void writeBatch(String topic, int first, int end) throws Exception {
        try (var producer = producer("linger.ms", "1000", "batch.size", "1000000")) {
            IntStream.range(first, end).forEach(number -> producer.send(message(topic, "" + number)));
            producer.flush();
        }
    }

    static List<String> counted(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(record -> text(record.value()) + " " + record.deliveryCount().orElseThrow()).toList();
    }

    static List<String> numbers(int first, int end) {
        return IntStream.range(first, end).mapToObj(String::valueOf).toList();
    }

    // What becomes of records.

    @Test
    public void recordsOfAllCodecsComeAsTheyWereSent() throws Exception {
        String topic = newTopic(1);
        Map<String, String> sent = new TreeMap<>();
        for (String codec : CODECS) {
            try (var producer = producer("compression.type", codec, "linger.ms", "1000")) {
                for (int number = 0; number < 20; number++) {
                    String key = number % 3 == 0 ? null : codec + number;
                    String value = number % 5 == 4 ? null : codec.repeat(40) + number;
                    var record = new ProducerRecord<>(topic, 0, 1000L + number, bytes(key), bytes(value));
                    record.headers().add(new RecordHeader("name", bytes(codec + number)));
                    producer.send(record);
                    sent.put(codec + number, key + " " + value + " " + (1000 + number));
                }
                producer.flush();
            }
        }
        Map<String, String> seen = new TreeMap<>();
        try (Sharer sharer = new Sharer(newGroup(), List.of(topic))) {
            while (seen.size() < sent.size()) {
                for (var record : sharer.some()) {
                    String header = text(record.headers().lastHeader("name").value());
                    seen.put(header, text(record.key()) + " " + text(record.value()) + " " + record.timestamp());
                    equal(record.deliveryCount().orElseThrow(), (short) 1, "deliveries of " + header);
                }
            }
        }
        equal(seen, sent, "records");
    }

    @Test
    public void whatAPollReturnedIsAcceptedByTheNextOne() throws Exception {
        String topic = newTopic(1);
        String group = newGroup();
        write(topic, "a", "b", "c");
        try (Sharer sharer = new Sharer(group, List.of(topic), "max.poll.records", "2", "share.acquire.mode", "record_limit")) {
            equal(values(sharer.some()), List.of("a", "b"), "the first two");
            equal(values(sharer.some()), List.of("c"), "the last one");
            equal(sharer.commit(), "[]", "problems");
            write(topic, "d");
            equal(counted(sharer.some()), List.of("d 1"), "one that came later");
            equal(sharer.commit(), "[]", "problems");
        }
        write(topic, "e");
        try (Sharer sharer = new Sharer(group, List.of(topic))) {
            var last = values(sharer.some());
            check(last.equals(List.of("e")), "after that came " + last);
        }
    }

    @Test
    public void recordsAreAcceptedReleasedAndRejected() throws Exception {
        String topic = newTopic(1);
        String group = newGroup();
        writeBatch(topic, 0, 9);
        try (Sharer sharer = explicit(group, topic)) {
            var records = sharer.some();
            equal(values(records), numbers(0, 9), "all at once");
            var types = List.of(AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT);
            records.forEach(record -> sharer.consumer.acknowledge(record, types.get((int) record.offset() % 3)));
            equal(sharer.commit(), "[]", "problems");
            var again = sharer.some();
            equal(counted(again), List.of("1 2", "4 2", "7 2"), "released");
            sharer.decide(again, AcknowledgeType.ACCEPT);
            sharer.nothingComes(500);
        }
    }

    @Test
    public void aRecordThatCannotBeReadIsRejectedByItsPlace() throws Exception {
        String topic = newTopic(1);
        write(topic, "a", "unreadable", "c");
        Map<String, Object> settings = settings("group.id", newGroup(), "share.acknowledgement.mode", "explicit", "fetch.max.wait.ms", "200");
        Deserializer<String> picky = (name, bytes) -> {
            if (text(bytes).equals("unreadable")) {
                throw new SerializationException("as it is called");
            }
            return text(bytes);
        };
        List<String> seen = new ArrayList<>();
        try (var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), picky)) {
            consumer.subscribe(List.of(topic));
            for (long deadline = deadline(PATIENCE_S); seen.size() < 3 && System.nanoTime() < deadline; ) {
                try {
                    for (var record : consumer.poll(SOON)) {
                        seen.add(record.value());
                        consumer.acknowledge(record);
                    }
                } catch (RecordDeserializationException problem) {
                    seen.add("at " + problem.offset());
                    consumer.acknowledge(topic, 0, problem.offset(), AcknowledgeType.REJECT);
                }
                consumer.commitSync();
            }
            equal(seen, List.of("a", "at 1", "c"), "seen");
        }
    }

    @Test
    public void decisionsWithoutWaitingAreToldOf() throws Exception {
        String topic = newTopic(1);
        write(topic, "a", "b");
        Map<Long, String> told = new ConcurrentHashMap<>();
        try (Sharer sharer = new Sharer(newGroup(), List.of(topic))) {
            sharer.consumer.setAcknowledgementCommitCallback((offsets, problem) ->
                    offsets.values().forEach(all -> all.forEach(offset -> told.put(offset, String.valueOf(problem)))));
            for (int seen = 0; seen < 2; ) {
                seen += sharer.some().size();
                sharer.consumer.commitAsync();
            }
            for (long deadline = deadline(PATIENCE_S); told.size() < 2 && System.nanoTime() < deadline; ) {
                sharer.poll(SOON);
            }
        }
        equal(told, Map.of(0L, "null", 1L, "null"), "what was told");
    }

    @Test
    public void aRenewedRecordStaysWithItsConsumer() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.record.lock.duration.ms", "4000");
        write(topic, "a");
        try (Sharer holder = explicit(group, topic); Sharer other = explicit(group, topic)) {
            var records = holder.some();
            equal(holder.consumer.acquisitionLockTimeoutMs(), Optional.of(4000), "the time of a lock");
            for (long end = deadline(5); System.nanoTime() < end; ) {
                holder.decide(records, AcknowledgeType.RENEW);
                records = holder.some();
                equal(counted(records), List.of("a 1"), "what was renewed");
                other.nothingComes(300);
            }
            holder.decide(records, AcknowledgeType.ACCEPT);
            other.nothingComes(300);
        }
    }

    @Test
    public void aGroupMayForbidToRenew() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.renew.acknowledge.enable", "false");
        write(topic, "a");
        try (Sharer sharer = explicit(group, topic)) {
            sharer.some().forEach(record -> sharer.consumer.acknowledge(record, AcknowledgeType.RENEW));
            equal(sharer.commit(), "[InvalidRecordStateException]", "problems");
        }
    }

    @Test
    public void aRecordThatIsHeldForTooLongGoesToAnother() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.record.lock.duration.ms", "1000");
        write(topic, "a");
        try (Sharer slow = explicit(group, topic)) {
            slow.some();
            try (Sharer other = explicit(group, topic)) {
                var records = other.some();
                check(List.of("a 2", "a 3").contains(String.join(", ", counted(records))), "what the other one got: " + counted(records));
                other.decide(records, AcknowledgeType.ACCEPT);
            }
        }
    }

    @Test
    public void whatAConsumerHoldsThatClosesComesAtOnce() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.record.lock.duration.ms", "60000");
        write(topic, "a");
        Sharer gone = explicit(group, topic);
        equal(counted(gone.some()), List.of("a 1"), "what it held");
        gone.close();
        try (Sharer other = explicit(group, topic)) {
            var records = other.some();
            equal(values(records), List.of("a"), "what the other one got");
            other.decide(records, AcknowledgeType.ACCEPT);
        }
    }

    @Test
    public void aRecordIsGivenOutSoOftenAndThenNoMore() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.delivery.count.limit", "3");
        write(topic, "a");
        try (Sharer sharer = explicit(group, topic)) {
            for (int count = 1; count <= 3; count++) {
                var records = sharer.some();
                equal(counted(records), List.of("a " + count), "delivery " + count);
                sharer.decide(records, AcknowledgeType.RELEASE);
            }
            write(topic, "b");
            var records = sharer.some();
            equal(counted(records), List.of("b 1"), "what came then");
            sharer.decide(records, AcknowledgeType.ACCEPT);
            sharer.nothingComes(300);
        }
    }

    @Test
    public void noMoreThanSoManyRecordsAreOut() throws Exception {
        String topic = newTopic(1);
        String group = newGroup("share.partition.max.record.locks", "100");
        writeBatch(topic, 0, 60);
        writeBatch(topic, 60, 120);
        writeBatch(topic, 120, 180);
        try (Sharer one = explicit(group, topic); Sharer other = explicit(group, topic)) {
            var held = new ArrayList<>(one.some());
            check(held.size() <= 120, held.size() + " records at once");
            // The rest of one batch may be beyond the limit.
            for (long deadline = deadline(5); held.size() < 100 && System.nanoTime() < deadline; ) {
                var more = other.poll(SOON);
                more.forEach(record -> other.consumer.acknowledge(record));
                equal(other.commit(), "[]", "problems");
                held.addAll(more);
            }
            check(held.size() >= 100 && held.size() <= 180, held.size() + " records are out");
        }
    }

    @Test
    public void aPollMayBeBoundByRecords() throws Exception {
        String topic = newTopic(1);
        writeBatch(topic, 0, 10);
        try (Sharer sharer = new Sharer(newGroup(), List.of(topic), "max.poll.records", "4", "share.acquire.mode", "record_limit")) {
            equal(values(sharer.some()), numbers(0, 4), "four");
            equal(values(sharer.some()), numbers(4, 8), "four more");
            equal(values(sharer.some()), numbers(8, 10), "the rest");
        }
    }

    // Several consumers, topics and groups.

    @Test
    public void consumersOfOneGroupShareOnePartition() throws Exception {
        String topic = newTopic(1);
        String group = newGroup();
        int count = 600;
        try (var producer = producer("batch.size", "200", "linger.ms", "0")) {
            IntStream.range(0, count).forEach(number -> producer.send(message(topic, "" + number)));
        }
        Map<String, Integer> accepted = new ConcurrentHashMap<>();
        AtomicInteger working = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int who = 0; who < 3; who++) {
            threads.add(new Thread(() -> {
                int mine = 0;
                try (Sharer sharer = explicit(group, topic, "max.poll.records", "10", "share.acquire.mode", "record_limit")) {
                    for (long deadline = deadline(PATIENCE_S); accepted.size() < count && System.nanoTime() < deadline; ) {
                        var records = sharer.poll(SOON);
                        sharer.decide(records, AcknowledgeType.ACCEPT);
                        records.forEach(record -> accepted.merge(text(record.value()), 1, Integer::sum));
                        mine += records.size();
                    }
                }
                working.addAndGet(mine > 0 ? 1 : 0);
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        equal(accepted.keySet(), Set.copyOf(numbers(0, count)), "accepted");
        equal(Set.copyOf(accepted.values()), Set.of(1), "how often");
        check(working.get() >= 2, working.get() + " consumer had any");
    }

    @Test
    public void aGroupReadsSeveralTopicsAndPartitionsAndWhatIsAdded() throws Exception {
        String[] topics = {newTopic(2), newTopic(1), unique("later")};
        String group = newGroup();
        writeTo(topics[0], 0, "a");
        writeTo(topics[0], 1, "b");
        writeTo(topics[1], 0, "c");
        try (Sharer sharer = new Sharer(group, List.of(topics), "metadata.max.age.ms", "300");
                Sharer other = new Sharer(group, List.of(topics), "metadata.max.age.ms", "300")) {
            Set<String> seen = new TreeSet<>();
            until(seen, List.of("a", "b", "c"), sharer, other);
            // A broker makes it that makes topics which somebody asks for.
            writeTo(topics[2], 0, "d");
            try (Admin admin = admin()) {
                admin.createPartitions(Map.of(topics[1], NewPartitions.increaseTo(2))).all().get();
            }
            writeTo(topics[1], 1, "e");
            until(seen, List.of("a", "b", "c", "d", "e"), sharer, other);
            // Another subscription; the other consumer stays with the old one.
            sharer.consumer.subscribe(List.of(topics[2]));
            equal(sharer.consumer.subscription(), Set.of(topics[2]), "subscription");
            writeTo(topics[0], 0, "f");
            writeTo(topics[2], 0, "g");
            until(seen, List.of("a", "b", "c", "d", "e", "f", "g"), sharer, other);
            sharer.consumer.unsubscribe();
            writeTo(topics[2], 0, "h");
            until(seen, List.of("a", "b", "c", "d", "e", "f", "g", "h"), other);
        }
    }

    static void writeTo(String topic, int partition, String value) throws Exception {
        try (var producer = producer("metadata.max.age.ms", "300")) {
            producer.send(new ProducerRecord<>(topic, partition, null, bytes(value))).get();
        }
    }

    static void until(Set<String> seen, List<String> wanted, Sharer... sharers) {
        for (long deadline = deadline(PATIENCE_S); !seen.equals(Set.copyOf(wanted)); ) {
            for (Sharer sharer : sharers) {
                for (String value : values(sharer.poll(SOON))) {
                    check(seen.add(value), value + " came twice");
                }
            }
            check(System.nanoTime() < deadline, "seen are " + seen);
        }
    }

    @Test
    public void aShareGroupAndAConsumerGroupReadTheSameTopic() throws Exception {
        String topic = newTopic(1);
        write(topic, "a", "b", "c");
        try (Sharer sharer = new Sharer(newGroup(), List.of(topic));
                Sharer stranger = new Sharer(newGroup(), List.of(topic));
                KafkaConsumer<byte[], byte[]> reader = consumer("group.id", unique("readers"), "auto.offset.reset", "earliest")) {
            reader.subscribe(List.of(topic));
            until(new TreeSet<>(), List.of("a", "b", "c"), sharer);
            until(new TreeSet<>(), List.of("a", "b", "c"), stranger);
            List<String> read = new ArrayList<>();
            for (long deadline = deadline(PATIENCE_S); read.size() < 3 && System.nanoTime() < deadline; ) {
                reader.poll(SOON).forEach(record -> read.add(text(record.value())));
            }
            equal(read, List.of("a", "b", "c"), "what the consumer group read");
        }
    }

    // Where a group begins.

    @Test
    public void aGroupBeginsWhereItIsToldTo() throws Exception {
        String topic = newTopic(1);
        long now = System.currentTimeMillis();
        try (var producer = producer()) {
            producer.send(new ProducerRecord<>(topic, 0, now - 7_200_000, null, bytes("old"))).get();
            producer.send(new ProducerRecord<>(topic, 0, now - 60_000, null, bytes("new"))).get();
        }
        String latest = newGroup("share.auto.offset.reset", "latest");
        String byDuration = newGroup("share.auto.offset.reset", "by_duration:PT1H");
        String byDefault = unique("share");
        try (Sharer first = new Sharer(newGroup(), List.of(topic));
                Sharer hour = new Sharer(byDuration, List.of(topic));
                Sharer last = new Sharer(latest, List.of(topic));
                Sharer usual = new Sharer(byDefault, List.of(topic))) {
            until(new TreeSet<>(), List.of("old", "new"), first);
            until(new TreeSet<>(), List.of("new"), hour);
            for (Sharer sharer : List.of(last, usual)) {
                // It begins at the end once it is there, and it is not known when that is.
                List<String> seen = new ArrayList<>();
                for (int number = 0; seen.isEmpty() && number < 200; number++) {
                    write(topic, "probe " + number);
                    seen.addAll(values(sharer.poll(SOON)));
                }
                check(!seen.isEmpty() && seen.get(0).startsWith("probe"), "from the end came " + seen);
            }
        }
    }

    @Test
    public void recordsThatAreDeletedDoNotCome() throws Exception {
        String topic = newTopic(1);
        String group = newGroup();
        writeBatch(topic, 0, 10);
        writeBatch(topic, 10, 20);
        try (Sharer sharer = explicit(group, topic, "max.poll.records", "5", "share.acquire.mode", "record_limit")) {
            sharer.decide(sharer.some(), AcknowledgeType.ACCEPT);
            try (Admin admin = admin()) {
                admin.deleteRecords(Map.of(new TopicPartition(topic, 0), RecordsToDelete.beforeOffset(15))).all().get();
            }
            List<String> seen = new ArrayList<>();
            for (long deadline = deadline(PATIENCE_S); !seen.contains("19") && System.nanoTime() < deadline; ) {
                var records = sharer.poll(SOON);
                records.forEach(record -> sharer.consumer.acknowledge(record));
                sharer.commit();
                seen.addAll(values(records));
            }
            check(seen.containsAll(numbers(15, 20)), "seen are " + seen);
            equal(new TreeSet<>(seen).size(), seen.size(), "each once of " + seen);
        }
    }

    @Test
    public void aGroupMayWaitForTheEndOfTransactions() throws Exception {
        String topic = newTopic(1);
        String committed = newGroup("share.isolation.level", "read_committed");
        try (KafkaProducer<byte[], byte[]> producer = producer("transactional.id", unique("id"))) {
            producer.initTransactions();
            for (String value : List.of("a", "b -", "c", "d -", "e")) {
                producer.beginTransaction();
                producer.send(message(topic, value));
                producer.flush();
                if (value.endsWith("-")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            try (Sharer sharer = explicit(committed, topic); Sharer all = explicit(newGroup(), topic)) {
                equal(values(all.accept(5)), List.of("a", "b -", "c", "d -", "e"), "all records");
                equal(values(sharer.accept(3)), List.of("a", "c", "e"), "committed records");
                producer.beginTransaction();
                producer.send(message(topic, "f"));
                producer.flush();
                write(topic, "g");
                sharer.nothingComes(500);
                producer.commitTransaction();
                equal(values(sharer.accept(2)), List.of("f", "g"), "what was committed then");
            }
        }
    }

    // What administrators see.

    @Test
    public void aGroupIsListedDescribedAndDeleted() throws Exception {
        String topic = newTopic(2);
        String group = newGroup();
        write(topic, "a");
        try (Admin admin = admin()) {
            try (Sharer sharer = new Sharer(group, List.of(topic), "client.id", "me"); Sharer other = new Sharer(group, List.of(topic))) {
                until(new TreeSet<>(), List.of("a"), sharer, other);
                ShareGroupDescription told = admin.describeShareGroups(List.of(group)).all().get().get(group);
                equal(told.groupState(), GroupState.STABLE, "state");
                equal(told.members().size(), 2, "members");
                var mine = told.members().stream().filter(member -> member.clientId().equals("me")).findFirst().orElseThrow();
                equal(mine.assignment().topicPartitions().stream().map(TopicPartition::topic).distinct().toList(), List.of(topic), "mine");
                var listed = admin.listGroups(ListGroupsOptions.forShareGroups()).all().get();
                var kinds = listed.stream().filter(it -> it.groupId().equals(group)).map(GroupListing::type).toList();
                equal(kinds, List.of(Optional.of(GroupType.SHARE)), "its type");
                refused(GroupNotEmptyException.class, () -> admin.deleteShareGroups(List.of(group)).all().get());
            }
            // Whoever closes does not wait until it is known that it has left.
            Groups.eventually(() -> isDeleted(admin, group), group + " is deleted");
        }
        // It begins anew.
        try (Sharer sharer = new Sharer(group, List.of(topic))) {
            until(new TreeSet<>(), List.of("a"), sharer);
        }
    }

    static boolean isDeleted(Admin admin, String group) {
        try {
            admin.deleteShareGroups(List.of(group)).all().get();
            return true;
        } catch (ExecutionException failure) {
            check(failure.getCause() instanceof GroupNotEmptyException, "the error is " + failure.getCause());
            return false;
        } catch (InterruptedException stopped) {
            throw new AssertionError(stopped);
        }
    }

    // What only Duramen has.

    @Test
    public void recordsOfOneKeyGoOneAfterTheOther() throws Exception {
        if (isKafka) {
            Assumptions.abort("Kafka does not keep the order of keys");
        }
        String topic = newTopic(1);
        String group = newGroup("share.record.order", "key");
        int keys = 7;
        int count = 40;
        try (var producer = producer("linger.ms", "20")) {
            for (int number = 0; number < count; number++) {
                for (int key = 0; key < keys; key++) {
                    producer.send(new ProducerRecord<>(topic, 0, bytes("key " + key), bytes("" + number)));
                }
            }
        }
        Map<String, AtomicInteger> out = new HashMap<>();
        Map<String, List<String>> accepted = new ConcurrentHashMap<>();
        for (int key = 0; key < keys; key++) {
            out.put("key " + key, new AtomicInteger());
            accepted.put("key " + key, new ArrayList<>());
        }
        AtomicInteger left = new AtomicInteger(keys * count);
        List<String> wrong = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int who = 0; who < 3; who++) {
            threads.add(new Thread(() -> {
                try (Sharer sharer = explicit(group, topic, "max.poll.records", "3", "share.acquire.mode", "record_limit")) {
                    for (long deadline = deadline(PATIENCE_S); left.get() > 0 && System.nanoTime() < deadline; ) {
                        var records = sharer.poll(SOON);
                        for (var record : records) {
                            String key = text(record.key());
                            if (out.get(key).incrementAndGet() > 1) {
                                wrong.add(text(record.value()) + " of " + key + " while another one is out");
                            }
                            // Every seventh is given back first.
                            boolean isBack = record.offset() % 7 == 0 && record.deliveryCount().orElseThrow() == 1;
                            sharer.consumer.acknowledge(record, isBack ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                            if (!isBack) {
                                accepted.get(key).add(text(record.value()));
                                left.decrementAndGet();
                            }
                            out.get(key).decrementAndGet();
                        }
                        if (!sharer.commit().equals("[]")) {
                            wrong.add("a decision was not taken");
                        }
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        equal(wrong, List.of(), "what was wrong");
        accepted.forEach((key, values) -> equal(values, numbers(0, count), "values of " + key));
    }

    @Test
    public void whatIsGivenUpIsADeadLetterAndComesAgain() throws Exception {
        if (isKafka) {
            Assumptions.abort("Kafka 4.3 has no dead letters");
        }
        String topic = newTopic(1);
        String dead = newTopic(1, "errors.deadletterqueue.group.enable", "true");
        String group = newGroup("errors.deadletterqueue.topic.name", dead, "share.delivery.count.limit", "2");
        write(topic, "good", "bad", "unlucky");
        try (Sharer sharer = explicit(group, topic)) {
            for (int left = 4; left > 0; ) {
                var records = sharer.some();
                for (var record : records) {
                    AcknowledgeType type = switch (text(record.value())) {
                        case "bad" -> AcknowledgeType.REJECT;
                        case "unlucky" -> AcknowledgeType.RELEASE;
                        default -> AcknowledgeType.ACCEPT;
                    };
                    sharer.consumer.acknowledge(record, type);
                    left--;
                }
                equal(sharer.commit(), "[]", "problems");
            }
            TreeMap<String, String> letters = new TreeMap<>();
            try (KafkaConsumer<byte[], byte[]> reader = consumer("auto.offset.reset", "earliest")) {
                reader.assign(List.of(new TopicPartition(dead, 0)));
                for (long deadline = deadline(PATIENCE_S); letters.size() < 2 && System.nanoTime() < deadline; ) {
                    reader.poll(SOON).forEach(record -> {
                        var from = record.headers().lastHeader("__dlq.errors.topic");
                        letters.put(text(record.value()), from == null ? "" : text(from.value()));
                    });
                }
            }
            equal(letters, Map.of("bad", topic, "unlucky", topic), "dead letters");
            Path said = Files.createTempFile("redrive", ".txt");
            String binary = System.getenv().getOrDefault("DURAMEN_BIN", "target/release/duramen");
            Process redrive = new ProcessBuilder(binary, "share", "redrive", dead, "--bootstrap", bootstrap)
                    .redirectErrorStream(true).redirectOutput(said.toFile()).start();
            equal(redrive.waitFor(), 0, "the end of redrive: " + Files.readString(said));
            Files.delete(said);
            equal(new TreeSet<>(counted(sharer.accept(2))), Set.of("bad 1", "unlucky 1"), "what came again");
        }
    }
}
