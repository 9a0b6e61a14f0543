import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.streaming.api.functions.source.RichParallelSourceFunction;

/** Rows like those of the benchmark's table: long, double, short text, 64 hexadecimal digits, microseconds. */
final class RowSource extends RichParallelSourceFunction<Tuple5<Long, Double, String, String, Long>> {
    static final TypeInformation<Tuple5<Long, Double, String, String, Long>> TYPE =
            Types.TUPLE(Types.LONG, Types.DOUBLE, Types.STRING, Types.STRING, Types.LONG);
    private static final long FIRST_MICROS = 1_767_225_600_000_000L;
    private static final char[] DIGITS = "0123456789abcdef".toCharArray();

    private final long rows;
    private volatile boolean running = true;

    RowSource(long rows) {
        this.rows = rows;
    }

    @Override
    public void run(SourceContext<Tuple5<Long, Double, String, String, Long>> out) {
        int subtasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
        char[] digest = new char[64];
        Meter.begin();
        for (long id = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(); id < rows && running; id += subtasks) {
            fill(digest, id);
            synchronized (out.getCheckpointLock()) {
                out.collect(Tuple5.of(id, id * 0.25, "key-" + id % 1000, new String(digest), FIRST_MICROS + id));
            }
        }
    }

    @Override
    public void cancel() {
        running = false;
    }

    /** Fill in digits that are cheaper than a real digest and as hard to compress. */
    private static void fill(char[] digest, long id) {
        for (int word = 0; word < 4; word++) {
            long bits = mixed(id * 4 + word);
            for (int digit = 0; digit < 16; digit++) {
                digest[word * 16 + digit] = DIGITS[(int) (bits & 15)];
                bits >>>= 4;
            }
        }
    }

    private static long mixed(long number) {
        long bits = (number + 1) * 0x9E3779B97F4A7C15L;
        bits = (bits ^ (bits >>> 30)) * 0xBF58476D1CE4E5B9L;
        return bits ^ (bits >>> 31);
    }
}
