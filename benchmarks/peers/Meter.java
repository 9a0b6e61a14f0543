import java.util.concurrent.atomic.AtomicLong;

/** The time from the first row of a source to the last row in a target, over all subtasks of this process. */
final class Meter {
    private static final AtomicLong FIRST = new AtomicLong();
    private static final AtomicLong LAST = new AtomicLong();
    private static final AtomicLong ROWS = new AtomicLong();

    static void reset() {
        FIRST.set(Long.MAX_VALUE);
        LAST.set(Long.MIN_VALUE);
        ROWS.set(0);
    }

    static void begin() {
        long now = System.nanoTime();
        FIRST.accumulateAndGet(now, Math::min);
    }

    /** Note that this many more rows are in the target. */
    static void note(long rows) {
        LAST.accumulateAndGet(System.nanoTime(), Math::max);
        ROWS.addAndGet(rows);
    }

    static long rows() {
        return ROWS.get();
    }

    static double seconds() {
        return (LAST.get() - FIRST.get()) / 1e9;
    }

    private Meter() {}
}
