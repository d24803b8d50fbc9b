import java.util.Arrays;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/**
 * Copies what a topic has into another one, keys, values and headers: SparkQueries BOOTSTRAP stream IN OUT CHECKPOINTS, which
 * goes on where a query before it stopped, or SparkQueries BOOTSTRAP batch IN OUT OPTION=VALUE..., which are those of the source.
 */
public final class SparkQueries {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], in = arguments[2], out = arguments[3];
        SparkSession spark = SparkSession.builder()
                .master("local[2]")
                .config("spark.ui.enabled", false)
                .getOrCreate();
        switch (arguments[1]) {
            case "stream" -> spark.readStream()
                    .format("kafka")
                    .option("kafka.bootstrap.servers", bootstrap)
                    .option("subscribe", in)
                    .option("startingOffsets", "earliest")
                    .option("includeHeaders", true)
                    // Several batches, so that a query that was ended has done some.
                    .option("maxOffsetsPerTrigger", 400)
                    .load()
                    .select("key", "value", "headers")
                    .writeStream()
                    .format("kafka")
                    .option("kafka.bootstrap.servers", bootstrap)
                    .option("topic", out)
                    .option("checkpointLocation", arguments[4])
                    .trigger(Trigger.AvailableNow())
                    .start()
                    .awaitTermination();
            case "batch" -> {
                DataFrameReader reader = spark.read()
                        .format("kafka")
                        .option("kafka.bootstrap.servers", bootstrap)
                        .option("subscribe", in)
                        .option("includeHeaders", true);
                for (String option : Arrays.asList(arguments).subList(4, arguments.length)) {
                    reader.option(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
                }
                reader.load()
                        .select("key", "value", "headers")
                        .write()
                        .format("kafka")
                        .option("kafka.bootstrap.servers", bootstrap)
                        .option("topic", out)
                        .save();
            }
            default -> throw new IllegalArgumentException(arguments[1]);
        }
        spark.stop();
    }
}
