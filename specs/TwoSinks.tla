---- MODULE TwoSinks ----
\* Two sinks served by separate runs, collected together.
EXTENDS WalSink
MCServes == (1 :> {"a"} @@ 2 :> {"b"} @@ 3 :> {"a"})
MCKind == [s \in {"a", "b"} |-> "plain"]
MCShape == <<<<1>>, <<>>>>
====
