import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.state.CheckpointStorage;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.runtime.state.storage.JobManagerCheckpointStorage;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Jobs that send rows of the benchmark's table to a target with Flink, through its write-ahead sink or directly.
 *
 * <p>Each line of standard input is a job, in words of the form name=value: rows, target (null or csv), log (file,
 * memory or none), folder (for the log, the target and the markers). The answer to a job is one line: "seconds" and the
 * time for the rows. One process runs all jobs, so that no measured time includes the start of a JVM.
 */
public final class WalJob {
    private static final int SUBTASKS = 2;
    private static final int CHECKPOINT_EVERY_MS = 1000;
    private static final int LARGEST_STATE_BYTES = 1 << 30;
    private static final String[] BOUND = {
        "rest.address", "rest.bind-address", "jobmanager.rpc.address", "jobmanager.bind-host", "taskmanager.host",
        "taskmanager.bind-host"
    };

    public static void main(String[] args) throws Exception {
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            run(Stream.of(line.split(" ")).map(word -> word.split("=", 2)).collect(Collectors.toMap(w -> w[0], w -> w[1])));
            System.out.printf("seconds %.6f%n", Meter.seconds());
        }
    }

    private static void run(Map<String, String> given) throws Exception {
        Meter.reset();
        long rows = Long.parseLong(given.get("rows"));
        Path folder = Path.of(given.get("folder"));
        StreamExecutionEnvironment env = environment();
        DataStream<Tuple5<Long, Double, String, String, Long>> stream =
                env.addSource(new RowSource(rows)).returns(RowSource.TYPE);
        Target target = Target.of(given.get("target"), folder.resolve("out").toString());
        if (given.get("log").equals("none")) {
            stream.addSink(new DirectSink(target));
        } else {
            env.getCheckpointConfig().setCheckpointStorage(storage(given.get("log"), folder.resolve("log")));
            MarkerFile committer = new MarkerFile(folder.resolve("markers").toString());
            stream.transform("wal", RowSource.TYPE, new LoggedSink(target, committer, serializer(env)));
        }
        env.execute();
        if (Meter.rows() != rows) {
            throw new IllegalStateException("expected " + rows + " rows in the target, found " + Meter.rows());
        }
    }

    private static StreamExecutionEnvironment environment() {
        Configuration conf = new Configuration();
        for (String name : BOUND) {
            conf.setString(name, "127.0.0.1");
        }
        conf.setString("rest.bind-port", "0");
        conf.setString("pekko.framesize", LARGEST_STATE_BYTES + "b");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(SUBTASKS, conf);
        env.enableCheckpointing(CHECKPOINT_EVERY_MS);
        env.getConfig().enableObjectReuse();
        return env;
    }

    private static CheckpointStorage storage(String log, Path folder) {
        return log.equals("file")
                ? new FileSystemCheckpointStorage(folder.toUri())
                : new JobManagerCheckpointStorage(LARGEST_STATE_BYTES);
    }

    private static org.apache.flink.api.common.typeutils.TypeSerializer<Tuple5<Long, Double, String, String, Long>>
            serializer(StreamExecutionEnvironment env) {
        return ((TupleTypeInfo<Tuple5<Long, Double, String, String, Long>>) RowSource.TYPE)
                .createSerializer(env.getConfig().getSerializerConfig());
    }

    private WalJob() {}
}
