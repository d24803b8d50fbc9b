import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What idempotence and transactions cost: TransactionCost BOOTSTRAP TOPIC SECONDS WARMUP_SECONDS PRODUCERS KIND STYLE.
 *
 * <p>KIND is `plain`, `idempotent` or `transactional`. A unit is 100 records, which the application waits for: each by itself
 * before the next one is sent (STYLE `waiting`), or all of them at the end (`together`). Of a transactional producer a unit is
 * a transaction. Prints as JSON the units of all producers that ended within SECONDS after the warm-up, and those of all the time.
 */
public final class TransactionCost {
    private static final int RECORDS = 100;
    private static final byte[] VALUE = new byte[200];

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1], kind = arguments[5], style = arguments[6];
        double seconds = Double.parseDouble(arguments[2]), warmup = Double.parseDouble(arguments[3]);
        int producers = Integer.parseInt(arguments[4]);
        ExecutorService threads = Executors.newFixedThreadPool(producers);
        List<Callable<long[]>> work = new ArrayList<>();
        long begun = System.nanoTime();
        long from = begun + (long) (warmup * 1e9), until = from + (long) (seconds * 1e9);
        for (int number = 0; number < producers; number++) {
            String id = topic + "-" + number;
            int partition = number;
            work.add(() -> produce(bootstrap, topic, partition, id, kind, style.equals("waiting"), from, until));
        }
        long units = 0, all = 0;
        List<Future<long[]>> results = threads.invokeAll(work);
        // Before the results: a producer that failed throws, and threads that wait for work keep the process.
        threads.shutdown();
        for (Future<long[]> done : results) {
            units += done.get()[0];
            all += done.get()[1];
        }
        System.out.printf("{\"units\": %d, \"all\": %d, \"seconds\": %s, \"records\": %d}%n", units, all, seconds, units * RECORDS);
    }

    /** The units that ended between two times, and all. */
    private static long[] produce(
            String bootstrap, String topic, int partition, String id, String kind, boolean waits, long from, long until)
            throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        settings.put("batch.size", "65536");
        settings.put("enable.idempotence", String.valueOf(!kind.equals("plain")));
        boolean isTransactional = kind.equals("transactional");
        if (isTransactional) {
            settings.put("transactional.id", id);
        }
        long units = 0, all = 0;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (isTransactional) {
                producer.initTransactions();
            }
            while (System.nanoTime() < until) {
                if (isTransactional) {
                    producer.beginTransaction();
                }
                List<Future<?>> sent = new ArrayList<>();
                for (int number = 0; number < RECORDS; number++) {
                    sent.add(producer.send(new ProducerRecord<>(topic, partition, null, VALUE)));
                    if (waits) {
                        sent.get(number).get();
                    }
                }
                // Before the commit, which would wait for the same: called while the client looks whether anything is on its way, it
                // may be sent before the records, and the broker knows of no transaction (once in some 20,000).
                producer.flush();
                if (isTransactional) {
                    producer.commitTransaction();
                }
                for (Future<?> each : sent) {
                    each.get();
                }
                long now = System.nanoTime();
                units += now >= from && now < until ? 1 : 0;
                all++;
            }
        }
        return new long[] {units, all};
    }
}
