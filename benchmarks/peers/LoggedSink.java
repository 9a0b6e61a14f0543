import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.streaming.runtime.operators.CheckpointCommitter;
import org.apache.flink.streaming.runtime.operators.GenericWriteAheadSink;

/** Flink's write-ahead sink in front of a target. */
final class LoggedSink extends GenericWriteAheadSink<Tuple5<Long, Double, String, String, Long>> {
    private final Target target;

    LoggedSink(
            Target target,
            CheckpointCommitter committer,
            TypeSerializer<Tuple5<Long, Double, String, String, Long>> serializer)
            throws Exception {
        super(committer, serializer, "benchmark");
        this.target = target;
    }

    @Override
    public void open() throws Exception {
        super.open();
        target.open(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
    }

    @Override
    public void close() throws Exception {
        super.close();
        target.close();
    }

    @Override
    protected boolean sendValues(
            Iterable<Tuple5<Long, Double, String, String, Long>> rows, long checkpointId, long timestamp)
            throws Exception {
        long sent = 0;
        for (Tuple5<Long, Double, String, String, Long> row : rows) {
            target.write(row);
            sent++;
        }
        target.flush();
        Meter.note(sent);
        return true;
    }
}
