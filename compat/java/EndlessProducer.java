import java.io.IOException;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produces until its standard input ends, with the client's own defaults (idempotent, acks=all), and prints what it was
 * told: EndlessProducer BOOTSTRAP TOPIC PARTITION NAME. The lines are those of kill9/confluent_producer.py.
 */
public class EndlessProducer {
    static final int PAUSE_MS = 2;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        int partition = Integer.parseInt(args[2]);
        String name = args[3];
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("delivery.timeout.ms", Integer.MAX_VALUE);
        settings.put("request.timeout.ms", 10_000);
        settings.put("reconnect.backoff.max.ms", 300);
        settings.put("max.request.size", 1_000_000);
        Random random = new Random(1);
        AtomicBoolean stop = new AtomicBoolean();
        Thread untilInputEnds = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException broken) {
                // An input that breaks has ended, too.
            }
            stop.set(true);
        });
        untilInputEnds.setDaemon(true);
        untilInputEnds.start();
        AtomicInteger untold = new AtomicInteger();
        int number = 0;
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
            while (!stop.get()) {
                byte[] value = new byte[number % 100 == 99 ? 100_000 + random.nextInt(200_000) : 10 + random.nextInt(2000)];
                random.nextBytes(value);
                String digest = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(value));
                int sent = number++;
                untold.incrementAndGet();
                producer.send(new ProducerRecord<>(topic, partition, name + ":" + sent, value), (metadata, failure) -> {
                    untold.decrementAndGet();
                    System.out.println(failure == null ? "ack " + sent + " " + metadata.offset() + " " + digest : "fail " + sent + " " + failure);
                });
                Thread.sleep(PAUSE_MS);
            }
            producer.flush();
        }
        System.out.println("end " + number + " " + untold.get());
    }
}
