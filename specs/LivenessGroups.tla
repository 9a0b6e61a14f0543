---- MODULE LivenessGroups ----
\* A committer that delivers in groups gets to mark every completed batch, whatever another left in the middle of a group.
EXTENDS WalSink
MCServes == [r \in 1..3 |-> IF r = 1 THEN {} ELSE {"a"}]
MCKind == [s \in {"a"} |-> "idempotent"]
MCShape == <<<<1>>, <<1>>>>
====
