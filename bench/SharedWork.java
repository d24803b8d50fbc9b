import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;

/**
 * Workers that share the records of a topic, of whose keys one takes long: SharedWork BOOTSTRAP TOPIC PARTITIONS GROUP KIND
 * WORKERS SECONDS RECORDS_PER_SECOND.
 *
 * <p>KIND is `consumer` (a consumer group: a partition has one worker) or `share` (a share group; how it orders is a setting of
 * the group). A record of the slow key takes a worker 100 ms, any other one 1 ms; one record of fifty is of the slow key. What
 * is told as JSON: of the other keys, how many were written and done, and how long it took from the one to the other; how many
 * of the slow key were done; and how often two records of one key were in work at once, or in another order than written.
 */
public final class SharedWork {
    private static final int KEYS = 1000, SLOW_KEY = 0, SLOW_OF = 50;
    private static final long SLOW_MS = 100, QUICK_MS = 1;
    private static final long WARM_UP_MS = 5000;

    private static final AtomicBoolean over = new AtomicBoolean();
    private static final AtomicLong slowDone = new AtomicLong(), atOnce = new AtomicLong(), outOfOrder = new AtomicLong();
    private static final List<Long> tookUs = Collections.synchronizedList(new ArrayList<>());
    private static final Set<Long> inWork = ConcurrentHashMap.newKeySet();
    private static final Map<Long, Long> latest = new ConcurrentHashMap<>();
    private static volatile long countedFromMs = Long.MAX_VALUE;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1], group = arguments[3];
        int partitions = Integer.parseInt(arguments[2]), workers = Integer.parseInt(arguments[5]);
        boolean shares = arguments[4].equals("share");
        int seconds = Integer.parseInt(arguments[6]), rate = Integer.parseInt(arguments[7]);
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < workers; number++) {
            Thread thread = new Thread(() -> {
                if (shares) {
                    share(bootstrap, topic, group);
                } else {
                    consume(bootstrap, topic, group);
                }
            });
            thread.start();
            threads.add(thread);
        }
        long written = produce(bootstrap, topic, partitions, seconds, rate);
        over.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        long[] took = tookUs.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(
                "{\"written\": %d, \"done\": %d, \"p50_us\": %d, \"p99_us\": %d, \"slow_done\": %d, \"at_once\": %d, \"out_of_order\": %d}%n",
                written, took.length, at(took, 0.5), at(took, 0.99), slowDone.get(), atOnce.get(), outOfOrder.get());
    }

    private static long at(long[] sorted, double part) {
        return sorted.length == 0 ? -1 : sorted[(int) (part * (sorted.length - 1))];
    }

    /** How many of other keys than the slow one were written after the warm-up. A key has one partition, the value is its number. */
    private static long produce(String bootstrap, String topic, int partitions, int seconds, int rate) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", "0");
        Random random = new Random(1);
        long written = 0;
        try (KafkaProducer<Long, Long> producer = new KafkaProducer<>(settings, new LongSerializer(), new LongSerializer())) {
            long begunMs = System.currentTimeMillis(), number = 0;
            countedFromMs = begunMs + WARM_UP_MS;
            long untilMs = countedFromMs + seconds * 1000L;
            for (long nowMs = begunMs; nowMs < untilMs; nowMs = System.currentTimeMillis()) {
                for (; number < (nowMs - begunMs) * rate / 1000; number++) {
                    long key = number % SLOW_OF == 0 ? SLOW_KEY : 1 + random.nextInt(KEYS - 1);
                    producer.send(new ProducerRecord<>(topic, (int) (key % partitions), nowMs, key, number));
                    written += key != SLOW_KEY && nowMs >= countedFromMs ? 1 : 0;
                }
                Thread.sleep(1);
            }
        }
        return written;
    }

    private static void consume(String bootstrap, String topic, String group) {
        Properties settings = reading(bootstrap, group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.interval.ms", "300000");
        try (KafkaConsumer<Long, Long> consumer =
                new KafkaConsumer<>(settings, new LongDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!over.get()) {
                for (ConsumerRecord<Long, Long> record : consumer.poll(Duration.ofMillis(200))) {
                    if (!over.get()) {
                        work(record);
                    }
                }
            }
        }
    }

    private static void share(String bootstrap, String topic, String group) {
        Properties settings = reading(bootstrap, group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", "record_limit");
        try (KafkaShareConsumer<Long, Long> consumer =
                new KafkaShareConsumer<>(settings, new LongDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!over.get()) {
                for (ConsumerRecord<Long, Long> record : consumer.poll(Duration.ofMillis(200))) {
                    work(record);
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                consumer.commitAsync();
            }
        }
    }

    private static Properties reading(String bootstrap, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        // A worker takes little at a time, so that nothing waits behind what is slow while others have nothing to do.
        settings.put("max.poll.records", "4");
        return settings;
    }

    private static void work(ConsumerRecord<Long, Long> record) {
        long key = record.key();
        boolean isAlone = inWork.add(key);
        atOnce.addAndGet(isAlone ? 0 : 1);
        Long before = latest.put(key, record.value());
        outOfOrder.addAndGet(before != null && before > record.value() ? 1 : 0);
        try {
            Thread.sleep(key == SLOW_KEY ? SLOW_MS : QUICK_MS);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
        if (isAlone) {
            inWork.remove(key);
        }
        if (record.timestamp() >= countedFromMs) {
            if (key == SLOW_KEY) {
                slowDone.incrementAndGet();
            } else {
                tookUs.add((System.currentTimeMillis() - record.timestamp()) * 1000);
            }
        }
    }
}
