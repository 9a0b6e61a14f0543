"""The protocol, in the order of events: what a start finds, what a batch goes through, what ends.

| step | files |
|---|---|
| Spark's checkpoint, read only | `checkpoint_formats`, `checkpoint`: fingerprint and gate |
| a start | `inventory` (lost objects), `location` (a copy, a move), `history` (batches), `sinks`, `registration` |
| stage | `stage` (a batch id: new, replay or error; the manifest), `partitions` (rows to segments) |
| release | `release`: one durable decision, for all sinks, which attempt is delivered |
| deliver | `committer` (`deliver_next` is the protocol of a batch), `batch_delivery`, `dispatch`, `segment_delivery` |
| | `messages` (data for tasks), `positions`, `retry`, `letters` (dead letters), `two_phase` (prepare, commit, abort) |
| mark | `progress`: what was recorded of a batch, markers, groups of batches |
| collect | `collect`: low water first, then deletion |
| a process | `run`, `committer_thread`, `committer_pool` |

Nothing here knows Spark. A delivery is the same code in the driver and on executors.
"""
