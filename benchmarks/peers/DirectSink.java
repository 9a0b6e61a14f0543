import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.streaming.api.functions.sink.RichSinkFunction;

/** The same target without a log. It shows the cost of the sink alone. */
final class DirectSink extends RichSinkFunction<Tuple5<Long, Double, String, String, Long>> {
    private final Target target;
    private transient long sent;

    DirectSink(Target target) {
        this.target = target;
    }

    @Override
    public void open(OpenContext context) throws Exception {
        target.open(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
    }

    @Override
    public void invoke(Tuple5<Long, Double, String, String, Long> row, Context context) throws Exception {
        target.write(row);
        sent++;
    }

    @Override
    public void finish() throws Exception {
        target.flush();
        Meter.note(sent);
    }

    @Override
    public void close() throws Exception {
        target.close();
    }
}
