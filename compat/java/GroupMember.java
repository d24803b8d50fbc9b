import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One member of a group as a process, as ../members.py wants it: GroupMember BOOTSTRAP GROUP TOPIC [SETTING=VALUE]... */
public class GroupMember implements ConsumerRebalanceListener {
    final TreeSet<Integer> owned = new TreeSet<>();

    public static void main(String[] args) {
        Map<String, Object> settings = Suite.reach(args[0]);
        settings.put("group.id", args[1]);
        settings.putAll(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", false, "heartbeat.interval.ms", 200, "fetch.max.wait.ms", 100));
        for (String word : List.of(args).subList(3, args.length)) {
            String value = word.substring(word.indexOf('=') + 1);
            switch (word.substring(0, word.indexOf('='))) {
                case "session_ms" -> settings.put("session.timeout.ms", value);
                case "instance" -> settings.put("group.instance.id", value);
                default -> throw new IllegalArgumentException(word);
            }
        }
        AtomicBoolean leaving = new AtomicBoolean();
        Thread untilInputEnds = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException broken) {
                // An input that breaks has ended, too.
            }
            leaving.set(true);
        });
        untilInputEnds.setDaemon(true);
        untilInputEnds.start();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[2]), new GroupMember());
            while (!leaving.get()) {
                readAndCommit(consumer);
            }
        }
    }

    static void readAndCommit(KafkaConsumer<byte[], byte[]> consumer) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
        if (records.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync();
            StringBuilder line = new StringBuilder("read");
            for (ConsumerRecord<byte[], byte[]> record : records) {
                line.append(' ').append(new String(record.value(), UTF_8));
            }
            System.out.println(line);
        } catch (CommitFailedException | RebalanceInProgressException refused) {
            for (TopicPartition partition : records.partitions()) {
                if (consumer.assignment().contains(partition)) {
                    consumer.seek(partition, records.records(partition).get(0).offset());
                }
            }
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.add(partition.partition()));
        say();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(partition -> owned.remove(partition.partition()));
        say();
    }

    void say() {
        System.out.println("owns " + owned.stream().map(String::valueOf).collect(Collectors.joining(" ")));
    }
}
