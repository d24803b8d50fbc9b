import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumes as a member of a share group until its standard input ends: ShareLoop BOOTSTRAP TOPIC GROUP NAME.
 * What it does and prints is what test_shares.py says.
 */
public class ShareLoop {
    static final int AT_ONCE = 20;
    static final int PAUSE_MS = 5;

    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", args[0], "group.id", args[2], "client.id", args[3],
                "share.acknowledgement.mode", "explicit", "share.acquire.mode", "record_limit", "max.poll.records", AT_ONCE,
                "reconnect.backoff.max.ms", 300, "fetch.max.wait.ms", 200, "request.timeout.ms", 10_000));
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
        Random random = new Random();
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (!stop.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                Set<ConsumerRecord<String, String>> accepted = new HashSet<>();
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println("delivered " + record.partition() + " " + record.offset());
                    boolean isAccepted = random.nextInt(10) > 0;
                    consumer.acknowledge(record, isAccepted ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                    if (isAccepted) {
                        accepted.add(record);
                    }
                }
                if (records.isEmpty()) {
                    continue;
                }
                Set<Integer> good = new HashSet<>();
                try {
                    consumer.commitSync(Duration.ofSeconds(30)).forEach((partition, problem) -> {
                        if (problem.isEmpty()) {
                            good.add(partition.partition());
                        }
                    });
                } catch (KafkaException unknown) {
                    System.err.println(unknown);
                }
                for (ConsumerRecord<String, String> record : records) {
                    String fate = good.contains(record.partition()) ? "accepted" : "unknown";
                    System.out.println((accepted.contains(record) ? fate : "released") + " " + record.partition() + " " + record.offset());
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }
}
