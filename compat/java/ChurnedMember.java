import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of `../groups`, of the consumer protocol (KIP-848): ChurnedMember BOOTSTRAP TOPIC GROUP. It commits what it has
 * processed, and leaves at SIGTERM.
 */
public class ChurnedMember {
    public static void main(String[] args) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", args[0], "group.id", args[2]));
        settings.putAll(Map.of("group.protocol", "consumer", "auto.offset.reset", "earliest", "enable.auto.commit", false));
        settings.putAll(Map.of("fetch.max.wait.ms", 100, "reconnect.backoff.max.ms", 300));
        AtomicInteger code = new AtomicInteger(1);
        CountDownLatch leaving = new CountDownLatch(1), left = new CountDownLatch(1);
        // A JVM that a signal ends says so by its code. This one ends with that of what it was asked for.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leaving.countDown();
            try {
                left.await();
            } catch (InterruptedException nobodyDoes) {
                code.set(1);
            }
            Runtime.getRuntime().halt(code.get());
        }));
        try {
            consume(settings, args[1], leaving);
            code.set(0);
        } finally {
            left.countDown();
        }
    }

    static void consume(Map<String, Object> settings, String topic, CountDownLatch leaving) {
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (leaving.getCount() > 0) {
                processAndCommit(consumer);
            }
        }
    }

    static void processAndCommit(KafkaConsumer<String, String> consumer) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            System.out.println(record.partition() + " " + record.offset() + " " + record.value());
        }
        // Also when nothing came: what could not be committed before is committed now.
        try {
            consumer.commitSync();
        } catch (CommitFailedException | RetriableException refused) {
            // It is another's by now, or the coordinator is away: whoever has it next begins where the last commit was.
        }
    }
}
