import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/**
 * Spark on one core, which reads topics up to their ends: SparkReads BOOTSTRAP.
 *
 * <p>Each line of its input asks for a read, with options of the source. `batch TOPIC OPTION=VALUE...` begins at the
 * beginning, `stream TOPIC CHECKPOINTS OPTION=VALUE...` where the one before it with these checkpoints stopped. It
 * prints `got PARTITION OFFSET VALUE` for each record, and `end COUNT`, of the batches of a stream. It ends when its
 * input ends.
 */
public class SparkReads {
    public static void main(String[] args) throws Exception {
        SparkSession spark = SparkSession.builder()
                .master("local[1]")
                .config("spark.ui.enabled", false)
                .getOrCreate();
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            boolean isStream = words[0].equals("stream");
            Map<String, String> options = new HashMap<>(Map.of(
                    "kafka.bootstrap.servers", args[0],
                    "subscribe", words[1],
                    "startingOffsets", "earliest"));
            for (String option : Arrays.asList(words).subList(isStream ? 3 : 2, words.length)) {
                options.put(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
            }
            int[] batches = new int[1];
            if (isStream) {
                spark.readStream()
                        .format("kafka")
                        .options(options)
                        .load()
                        .writeStream()
                        .option("checkpointLocation", words[2])
                        .trigger(Trigger.AvailableNow())
                        .foreachBatch((records, number) -> {
                            batches[0]++;
                            tell(records);
                        })
                        .start()
                        .awaitTermination();
            } else {
                tell(spark.read().format("kafka").options(options).option("endingOffsets", "latest").load());
            }
            System.out.println("end " + batches[0]);
        }
        spark.stop();
    }

    static void tell(Dataset<Row> records) {
        List<Row> rows = records.selectExpr("partition", "offset", "cast(value as string)").collectAsList();
        rows.forEach(row -> System.out.println("got " + row.getInt(0) + " " + row.getLong(1) + " " + row.getString(2)));
    }
}
