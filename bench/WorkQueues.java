import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.Phaser;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Workers of a share group whose records have random keys, each record acknowledged before the worker gets the next ones:
 * WorkQueues BOOTSTRAP TOPIC drain WORKERS LIMIT QUEUES SIZE WARM_UP MESSAGES SECONDS, or WorkQueues BOOTSTRAP TOPIC follow WORKERS
 * LIMIT QUEUES SIZE WARM_UP MESSAGES RATE SKIPPED.
 *
 * <p>`drain` lets workers have the records of a warm-up, writes the records that count, prints `ready`, and waits for a line on
 * stdin. Then workers have them all, or as many as the time allows. `follow` writes records at a steady rate while workers
 * wait; the times of the first SKIPPED ones do not count. The reports are those of `drain` and `follow` in peers/work.go.
 */
public final class WorkQueues {
    private static final int HEADER = Integer.BYTES + Long.BYTES;
    /** Patience with the records of a warm-up, and with the last ones of a steady rate. */
    private static final long PATIENCE_S = 120, GRACE_S = 15;
    /** Time in which all members have joined, and have their partitions. Who joins later takes partitions from others. */
    private static final long JOIN_S = 8;

    private static String bootstrap, topic;
    private static int workers, limit, queues, size, warmUp, messages;

    /** Records from one moment on; workers count them. */
    private static final class Part {
        final AtomicInteger settled = new AtomicInteger(), unsettled = new AtomicInteger(), twice = new AtomicInteger();
        final int count, skipped;
        final CountDownLatch isOver = new CountDownLatch(1);
        final AtomicIntegerArray seen;
        final List<Long> polls = new ArrayList<>(), settles = new ArrayList<>(), after = new ArrayList<>();
        volatile long last = System.nanoTime();

        Part(int count, int skipped) {
            this.count = count;
            this.skipped = skipped;
            seen = new AtomicIntegerArray(count);
        }

        synchronized void took(long poll, long settle) {
            polls.add(poll);
            settles.add(settle);
            last = System.nanoTime();
        }

        synchronized void arrived(int number, long after) {
            twice.addAndGet(seen.getAndIncrement(number) > 0 ? 1 : 0);
            if (number >= skipped) {
                this.after.add(after);
            }
        }
    }

    private static volatile Part part;
    private static volatile boolean isPaused, isOver;
    /** Workers that make no call. */
    private static final Phaser pause = new Phaser(1);
    private static volatile Throwable failure;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        boolean drains = arguments[2].equals("drain");
        workers = Integer.parseInt(arguments[3]);
        limit = Integer.parseInt(arguments[4]);
        queues = Integer.parseInt(arguments[5]);
        size = Math.max(HEADER, Integer.parseInt(arguments[6]));
        warmUp = Integer.parseInt(arguments[7]);
        messages = Integer.parseInt(arguments[8]);
        int secondsOrRate = Integer.parseInt(arguments[9]);
        String group = topic + "-workers";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                    new ConfigResource(ConfigResource.Type.GROUP, group),
                    List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET)))).all().get();
        }
        part = new Part(warmUp, 0);
        for (int number = 0; number < workers; number++) {
            pause.register();
            Thread thread = new Thread(() -> {
                try {
                    share(group);
                } catch (Throwable failed) {
                    failure = failed;
                    part.isOver.countDown();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        TimeUnit.SECONDS.sleep(JOIN_S);
        fill(warmUp);
        await(part, PATIENCE_S);
        if (part.settled.get() < warmUp) {
            throw new IllegalStateException("of " + warmUp + " records of the warm-up " + part.settled + " were settled");
        }
        if (drains) {
            drain(secondsOrRate);
        } else {
            follow(secondsOrRate, Integer.parseInt(arguments[10]));
        }
        System.out.flush();
        // Workers that leave would only take time.
        Runtime.getRuntime().halt(0);
    }

    private static void await(Part part, long seconds) throws Exception {
        part.isOver.await(seconds, TimeUnit.SECONDS);
        if (failure != null) {
            throw new IllegalStateException(failure);
        }
    }

    private static void drain(int seconds) throws Exception {
        isPaused = true;
        pause.awaitAdvance(pause.arrive());
        Part counted = new Part(messages, 0);
        part = counted;
        fill(messages);
        System.out.println("ready");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        double cpu = cpuSeconds();
        long begun = System.nanoTime();
        isPaused = false;
        pause.arrive();
        await(counted, seconds);
        double took = (counted.last - begun) / 1e9;
        synchronized (counted) {
            int total = counted.settled.get();
            System.out.printf(
                    Locale.ROOT,
                    "{\"workers\": %d, \"queues\": %d, \"limit\": %d, \"messages\": %d, \"total\": %d, \"seconds\": %f,"
                            + " \"messages_per_second\": %f, \"client_cpu_seconds\": %f, \"unsettled\": %d, \"twice\": %d,"
                            + " \"calls\": %d, \"lease_us\": %s, \"settle_us\": %s}%n",
                    workers, queues, limit, messages, total, took, total / took, cpuSeconds() - cpu, counted.unsettled.get(),
                    counted.twice.get(), counted.polls.size(), quantiles(counted.polls), quantiles(counted.settles));
        }
    }

    private static void follow(int rate, int skipped) throws Exception {
        Part counted = new Part(messages, skipped);
        part = counted;
        List<Long> acks = Collections.synchronizedList(new ArrayList<>());
        double cpu = cpuSeconds();
        long begun = System.nanoTime();
        try (KafkaProducer<String, byte[]> producer = producer("0")) {
            Random random = new Random(1);
            for (int number = 0; number < messages; number++) {
                long due = begun + number * 1_000_000_000L / rate;
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    TimeUnit.NANOSECONDS.sleep(left);
                }
                boolean counts = number >= skipped;
                producer.send(record(random, number, due), (written, failed) -> {
                    if (counts) {
                        acks.add(System.nanoTime() - due);
                    }
                    failure = failed == null ? failure : failed;
                });
            }
        }
        await(counted, GRACE_S);
        synchronized (counted) {
            System.out.printf(
                    Locale.ROOT,
                    "{\"workers\": %d, \"queues\": %d, \"limit\": %d, \"rate\": %d, \"messages\": %d, \"total\": %d,"
                            + " \"unsettled\": %d, \"twice\": %d, \"client_cpu_seconds\": %f, \"seconds\": %f, \"append_us\": %s, \"latency_us\": %s,"
                            + " \"settle_us\": %s}%n",
                    workers, queues, limit, rate, messages, counted.settled.get(), counted.unsettled.get(),
                    counted.twice.get(), cpuSeconds() - cpu, (System.nanoTime() - begun) / 1e9, quantiles(acks), quantiles(counted.after),
                    quantiles(counted.settles));
        }
    }

    private static KafkaProducer<String, byte[]> producer(String lingerMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", lingerMs);
        return new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer());
    }

    private static ProducerRecord<String, byte[]> record(Random random, int number, long due) {
        byte[] value = new byte[size];
        random.nextBytes(value);
        ByteBuffer.wrap(value).putInt(number).putLong(due);
        return new ProducerRecord<>(topic, String.format("queue-%08d", random.nextInt(queues)), value);
    }

    private static void fill(int count) throws Exception {
        Random random = new Random(2);
        List<Future<?>> sent = new ArrayList<>();
        try (KafkaProducer<String, byte[]> producer = producer("5")) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(record(random, number, 0)));
            }
        }
        for (Future<?> each : sent) {
            each.get();
        }
    }

    private static void share(String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("max.poll.records", String.valueOf(limit));
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", "record_limit");
        try (KafkaShareConsumer<String, byte[]> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (!isOver) {
                if (isPaused) {
                    pause.arriveAndAwaitAdvance();
                    pause.arriveAndAwaitAdvance();
                }
                long begun = System.nanoTime();
                ConsumerRecords<String, byte[]> records = consumer.poll(Duration.ofMillis(200));
                long polled = System.nanoTime();
                if (records.isEmpty()) {
                    continue;
                }
                // A pause begins when all of the part are settled, so they are all of one part.
                Part of = part;
                for (ConsumerRecord<String, byte[]> record : records) {
                    ByteBuffer value = ByteBuffer.wrap(record.value());
                    of.arrived(value.getInt(), polled - value.getLong());
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                int settled = records.count();
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
                    if (each.getValue().isPresent()) {
                        int unsettled = records.records(each.getKey().topicPartition()).size();
                        of.unsettled.addAndGet(unsettled);
                        settled -= unsettled;
                    }
                }
                of.took(polled - begun, System.nanoTime() - polled);
                if (of.settled.addAndGet(settled) >= of.count) {
                    of.isOver.countDown();
                }
            }
        }
    }

    private static String quantiles(List<Long> nanos) {
        long[] sorted = nanos.stream().mapToLong(Long::longValue).sorted().toArray();
        return String.format(
                Locale.ROOT, "{\"mean\": %.1f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}",
                Arrays.stream(sorted).average().orElse(0) / 1e3, at(sorted, 0.5), at(sorted, 0.9), at(sorted, 0.99),
                at(sorted, 0.999), at(sorted, 1));
    }

    private static double at(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (part * sorted.length))] / 1e3;
    }

    private static double cpuSeconds() {
        java.lang.management.OperatingSystemMXBean system = java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime() / 1e9;
    }
}
