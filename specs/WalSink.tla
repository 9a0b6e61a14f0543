------------------------------ MODULE WalSink ------------------------------
(***************************************************************************)
(* The protocol of wal-sink as the code carries it out, one store request  *)
(* (or one call of a sink) per action.  docs/ARCHITECTURE.md explains it;  *)
(* README.md beside this file lists the models and maps code to actions.   *)
(*                                                                         *)
(* A RUN is one life of one process.  A run may stop for ever between any  *)
(* two actions: that is a crash.  It may also go on at any later time,     *)
(* after others have taken over: that is a zombie.  No action is needed    *)
(* for either, since nothing here is fair (but in the liveness model).     *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, Sequences, TLC

CONSTANTS
    NRuns,         \* runs 1..NRuns, opened in this order; 0 staged what Prestaged says
    Stages,        \* the runs that have a streaming query
    Chains,        \* those of them whose own foreachBatch calls `stage`: they claim their term inside their first batch
    Serves,        \* [run -> the sinks it has committers for]
    Sinks,
    Kind,          \* [sink -> "plain" | "idempotent" | "transactional" | "at_most_once"]
    Shape,         \* a batch each: <<chunks of segment 1, chunks of segment 2, ...>>; <<>> is a batch without rows
    Prestaged,     \* how many batches are staged and completed before anything happens
    Retention,     \* Settings.retention_batches
    Group,         \* how many batches a committer may deliver before it marks them with one marker; 1: each has its own
    MaxRollbacks,  \* how often somebody restores an older checkpoint
    MaxDeletions,  \* how often somebody deletes the checkpoint, so that a new query id begins
    MaxRestarts,   \* how often a query is started again within a living run
    MaxRetries,    \* how many sends fail, with or without effect
    MaxLost,       \* how many delivery jobs are given up while a task of theirs goes on (DispatcherLostError)
    MaxAmbiguous,  \* how many creates take effect and answer with an error
    Fixes,         \* which repairs the code has; see README.md
    BUG            \* "none", or the planted bug

ASSUME Fixes \subseteq {"confirm_release", "fresh_gate", "term_after_record", "renew_term",
                       "known_at_query_start", "stager_term", "own_offsets", "first_batch_looked_up",
                       "running_query_asked"}

\* Else the marker of a superseded committer at the end of its group could let others collect what a newer one is about to
\* deliver again (BUG = "group_longer_than_retention").
ASSUME Group = 1 \/ Group <= Retention

VARIABLES
    ck,            \* Spark's checkpoint: query id, offsets, completed batches; h counts restorations
    wal,           \* wal.json: the query id it belongs to; 0: not there
    terms,         \* terms/<role>/<n>.json
    man,           \* batches/<b>/manifest-<term>-<attempt>.json
    rel,           \* batches/<b>/release.json
    prog,          \* sinks/<s>/progress/...
    mark,          \* sinks/<s>/markers/...
    low,           \* the highest of low-water/<n>.json
    R,             \* memory that stager and committers of a run share (History, Gate, Releaser)
    S,             \* the query of a run and its Stager
    C,             \* its Committers
    T,             \* their delivery tasks: slot g >= 1 segment g; slot 0 a task that was given up and goes on
    G              \* what the targets hold, and ghosts: what only the laws need

store == <<wal, terms, man, rel, prog, mark, low>>
vars == <<ck, wal, terms, man, rel, prog, mark, low, R, S, C, T, G>>

Fixed(name) == name \in Fixes
Max(set) == CHOOSE x \in set : \A y \in set : y <= x
Min(set) == CHOOSE x \in set : \A y \in set : x <= y

Runs == 1..NRuns
NB == Len(Shape)
Batches == 0..(NB - 1)
Segs(b) == 1..Len(Shape[b + 1])
Size(b, g) == Shape[b + 1][g]
MaxSegs == Max({0} \cup {Len(Shape[i]) : i \in 1..NB})
Slots == 0..MaxSegs
Roles == {"stager"} \cup Sinks
Cells == {<<s, b, g, k>> \in Sinks \X Batches \X (1..MaxSegs) \X (1..4) :
            g \in Segs(b) /\ k <= Size(b, g)}

\* An attempt to stage, or a release of it: term and attempt number, run (that staged, that released), fingerprint
\* (which the stager reads from the checkpoint), and x, a ghost: the fingerprint of the rows that Spark really handed over.
NoAtt == [t |-> -1, n |-> 0, r |-> 0, f |-> 0, x |-> 0]
NoTask == [pc |-> "none", b |-> 0, g |-> 0, k |-> 0, att |-> NoAtt, term |-> 0, late |-> FALSE, seen |-> FALSE, fresh |-> FALSE]
NoRows == [g \in 1..MaxSegs |-> 0]
IdleTasks == [x \in Slots |-> NoTask]

Init ==
    /\ ck = [q |-> 1, h |-> 1, off |-> [i \in 1..Prestaged |-> 1], done |-> Prestaged]
    /\ wal = IF Prestaged > 0 THEN 1 ELSE 0
    /\ terms = [x \in Roles |-> {}]
    /\ man = {[b |-> b, t |-> 0, n |-> 1, r |-> 0, f |-> 1, x |-> 1] : b \in 0..(Prestaged - 1)}
    /\ rel = [b \in Batches |-> NoAtt]
    /\ prog = {}
    /\ mark = {}
    /\ low = -1
    /\ R = [r \in Runs |-> [phase |-> "new", own |-> 0, gate |-> -1, known |-> -1,
                            staged |-> [b \in Batches |-> NoAtt], relm |-> [b \in Batches |-> NoAtt]]]
    /\ S = [r \in Runs |-> [pc |-> IF r \in Stages THEN "off" ELSE "none", b |-> 0, f |-> 0, x |-> 0, h |-> 0, q |-> 0,
                            t |-> 0, n |-> 0]]
    /\ C = [r \in Runs |-> [s \in Serves[r] |->
                [pc |-> "claim", term |-> 0, marked |-> -1, upto |-> -1, began |-> -1, rec |-> TRUE, b |-> -1, att |-> NoAtt,
                 rows |-> NoRows, seen |-> FALSE, fresh |-> FALSE, tgt |-> -1, why |-> ""]]]
    /\ T = [r \in Runs |-> [s \in Serves[r] |-> IdleTasks]]
    /\ G = [cnt |-> [c \in Cells |-> 0],          \* how often a chunk took effect in a target
            tags |-> [b \in Batches |-> {}],      \* of which attempts rows were sent
            ledger |-> [x \in Sinks \X (1..MaxSegs) |-> [term |-> 0, b |-> -1, k |-> 0]],   \* transactional targets
            dead |-> {},                          \* dead letters of at-most-once delivery
            done |-> {<<1, b, 1>> : b \in 0..(Prestaged - 1)},     \* what Spark ever completed
            marked |-> [x \in Sinks \X Batches |-> 0],             \* fingerprint under which it was ever marked
            rel |-> [b \in Batches |-> NoAtt],    \* the first release
            won |-> [b \in Batches |-> NoAtt],    \* the attempt whose query completed the batch last
            alarm |-> {},                         \* errors raised to the user about a batch (-1: about the WAL)
            retries |-> [s \in Sinks |-> 0], fails |-> 0, lost |-> 0, amb |-> 0, restarts |-> 0,
            bad |-> {}]                           \* laws seen broken by an action

-----------------------------------------------------------------------------
(* Groups.  A committer whose target drops what it already has may deliver several batches, one after the other, before it *)
(* creates one marker, that of the newest, which stands for every batch through its own.                                  *)

DropsRepeats(s) == Kind[s] = "idempotent"                       \* sinks.guarantees.Promise.ignores_repeats
Longest == IF BUG = "group_longer_than_retention" THEN Retention + 2 ELSE Group
Grouped(s) == Group > 1 /\ (DropsRepeats(s) \/ BUG \in {"plain_sink_in_groups", "transactional_sink_in_groups"})

\* Time is not modelled: a committer that read its term at the start of a group may trust that for the rest of it.
MaySkipTerm(s) == (Grouped(s) /\ DropsRepeats(s)) \/ BUG = "plain_sink_skips_its_term"

\* delivery.segment: where a target ignores repeats or refuses them, a look at the term is good for a while, and a task may
\* send chunk after chunk; progress of the first kind is recorded once in a while.
ByTime(s) == Kind[s] \in {"idempotent", "transactional"}

(* One read or listing of the store *)

Superseded(role, term) == (term + 1) \in terms[role]            \* log.terms.Term.check
NextTerm(role) == Max({0} \cup terms[role]) + 1                \* log.terms.claim
Marked(s, b) == \E m \in mark : m.s = s /\ m.b = b
NewestMarker(s) == Max({-1} \cup {m.b : m \in {x \in mark : x.s = s}})     \* protocol.inventory.newest_marker
Recorded(s, b, g) == Max({0} \cup {p.k : p \in {x \in prog : x.s = s /\ x.b = b /\ x.g = g}})  \* protocol.progress.recorded_rows
Traces == {m.b : m \in man} \cup {b \in Batches : rel[b] # NoAtt}
HasOffsets(b) == Len(ck.off) > b
ManifestOf(b, att) == \E m \in man : m.b = b /\ m.t = att.t /\ m.n = att.n
Ambiguous == G.amb < MaxAmbiguous

\* Whether the run's committers still go on: WalSink._opened raises what one gave up on, before anything is staged.
InError(r) == \E s \in Serves[r] : C[r][s].pc \in {"alarm", "fenced"}

Shout(g, b, why, false) ==
    [g EXCEPT !.alarm = @ \cup {<<b, why>>}, !.bad = IF false THEN @ \cup {"NoFalseAlarm"} ELSE @]

\* A refusal is false if it blames a history that nobody touched.
FalseAlarm(why) == why \in {"corrupt", "collected"} \/ ck.h = 1

-----------------------------------------------------------------------------
(* The environment: Spark and the people who restore checkpoints *)

\* Somebody restores an older copy of the checkpoint.  The queries that run on it die at their next write to it
\* (they are zombies, and Spark's own); their processes, committers among them, may live on.
Rollback ==
    /\ ck.h - ck.q < MaxRollbacks
    /\ \E d \in 0..ck.done, extra \in 0..1 :
        /\ d + extra <= Len(ck.off)
        /\ d + extra < Len(ck.off) \/ d < ck.done
        /\ ck' = [ck EXCEPT !.h = @ + 1, !.done = d, !.off = SubSeq(@, 1, d + extra)]
    /\ UNCHANGED <<store, R, S, C, T, G>>

\* Somebody deletes the checkpoint: a new query id, batch 0 again.
DeleteCheckpoint ==
    /\ ck.q <= MaxDeletions
    /\ Len(ck.off) > 0
    /\ ck' = [q |-> ck.q + 1, h |-> ck.h + 1, off |-> <<>>, done |-> 0]
    /\ UNCHANGED <<store, R, S, C, T, G>>

\* The new query runs into another WAL.
OtherQuery ==
    /\ wal # 0 /\ ck.q # wal /\ ck.done < NB
    /\ ck' = [ck EXCEPT !.off = Append(SubSeq(@, 1, ck.done), ck.h), !.done = @ + 1]
    /\ G' = [G EXCEPT !.done = @ \cup {<<ck.q, ck.done, ck.h>>}]
    /\ UNCHANGED <<store, R, S, C, T>>

-----------------------------------------------------------------------------
(* Opening a run *)

\* protocol.run.Run.open: protocol.history.History.load_owner, load_batches, protocol.checkpoint.Gate.search
Open(r) ==
    /\ R[r].phase = "new"
    /\ r > 1 => R[r - 1].phase # "new"
    /\ IF wal # 0 /\ wal # ck.q /\ BUG # "query_id_not_checked"
       THEN /\ R' = [R EXCEPT ![r].phase = "refused"]
            /\ G' = Shout(G, -1, "owner", FALSE)
       ELSE /\ R' = [R EXCEPT ![r].phase = "open", ![r].own = wal, ![r].gate = ck.done - 1]
            /\ UNCHANGED G
    /\ UNCHANGED <<ck, store, S, C, T>>

\* protocol.run.Run._committer: log.terms.claim
Claim(r, s) ==
    /\ R[r].phase = "open" /\ C[r][s].pc = "claim"
    /\ terms' = [terms EXCEPT ![s] = @ \cup {NextTerm(s)}]
    /\ C' = [C EXCEPT ![r][s].pc = "load", ![r][s].term = NextTerm(s)]
    /\ UNCHANGED <<ck, wal, man, rel, prog, mark, low, R, S, T, G>>

\* protocol.committer.Committer.load
Load(r, s) ==
    /\ C[r][s].pc = "load"
    /\ C' = [C EXCEPT ![r][s].pc = "idle", ![r][s].marked = NewestMarker(s), ![r][s].upto = NewestMarker(s)]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* protocol.run.Run.become_stager, once the committers have caught up
\* (protocol.committer_pool.CommitterPool.wait_caught_up): protocol.history.History.ask_owner_again, then
\* log.terms.claim.  `WalSink.start` calls it before Spark starts the query; where the user's own foreachBatch calls
\* `WalSink.stage` (Chains), Spark has chosen and planned the batch before.
BecomeStager(r) ==
    /\ R[r].phase = "open" /\ S[r].pc = IF r \in Chains THEN "claim" ELSE "off"
    /\ \A s \in Serves[r] : C[r][s].pc \notin {"claim", "load"} /\ ~C[r][s].rec
    /\ ~InError(r)
    /\ LET asks == Fixed("known_at_query_start") \/ R[r].own # wal      \* is_owned_by remembers only what was yes
       IN IF asks /\ wal # 0 /\ wal # ck.q /\ BUG # "query_id_not_checked"
          THEN /\ S' = [S EXCEPT ![r].pc = "dead"]
               /\ G' = Shout(G, -1, "owner", FALSE)
               /\ UNCHANGED terms
          ELSE /\ terms' = [terms EXCEPT !["stager"] = @ \cup {NextTerm("stager")}]
               /\ S' = [S EXCEPT ![r].pc = "known", ![r].t = NextTerm("stager"), ![r].n = 0]
               /\ UNCHANGED G
    /\ R' = IF wal # 0 THEN [R EXCEPT ![r].own = wal] ELSE R
    /\ UNCHANGED <<ck, wal, man, rel, prog, mark, low, C, T>>

\* protocol.history.History.load_batches, once the term is claimed.  The repair "known_at_query_start": at every start of a query.
LoadBatches(r) ==
    /\ S[r].pc = "known"
    /\ R' = IF Fixed("known_at_query_start") \/ R[r].known = -1
            THEN [R EXCEPT ![r].known = Max({@, low} \cup {b \in Traces : b > low})] ELSE R
    /\ S' = [S EXCEPT ![r].pc = IF r \in Chains THEN "stage" ELSE "start"]
    /\ UNCHANGED <<ck, store, C, T, G>>

-----------------------------------------------------------------------------
(* The query of a run: Spark, and the Stager inside its foreachBatch *)

\* Spark starts the query: what was planned and not completed is run again as it was planned.  That no checkpoint is
\* restored between the claim and this look at the checkpoint is assumed of `WalSink.start` where only "stager_term"
\* tells whose offsets are in the checkpoint, so that queries on one history have terms in the order they start.
SparkStart(r) ==
    /\ S[r].pc = IF r \in Chains THEN "off" ELSE "start"
    /\ r > 1 => R[r - 1].phase # "new"
    /\ S' = [S EXCEPT ![r].pc = IF Len(ck.off) = ck.done THEN "plan" ELSE IF r \in Chains THEN "claim" ELSE "stage",
                      ![r].b = ck.done, ![r].x = IF Len(ck.off) > ck.done THEN ck.off[ck.done + 1] ELSE 0,
                      ![r].h = ck.h, ![r].q = ck.q]
    /\ UNCHANGED <<ck, store, R, C, T, G>>

\* Spark writes offsets/N, or finds that another query did and dies.  After a restoration it may read other rows.
Plan(r) ==
    /\ S[r].pc = "plan" /\ S[r].b < NB
    /\ IF S[r].h = ck.h /\ Len(ck.off) = S[r].b
       THEN \E f \in 1..ck.h :
            /\ ck' = [ck EXCEPT !.off = Append(@, f)]
            /\ S' = [S EXCEPT ![r].pc = IF r \in Chains /\ S[r].t = 0 THEN "claim" ELSE "stage", ![r].x = f]
       ELSE /\ S' = [S EXCEPT ![r].pc = "dead"]
            /\ UNCHANGED ck
    /\ UNCHANGED <<store, R, C, T, G>>

StageFails(r, why) ==
    /\ S' = [S EXCEPT ![r].pc = "dead"]
    /\ G' = Shout(G, S[r].b, why, FalseAlarm(why))

\* The first batch of a stager is looked up whatever is known: Spark chose it after the WAL was read.  Unless the stager
\* has just made the WAL: every release is made after that.
LooksUp(r, b) == b <= R[r].known \/ (Fixed("first_batch_looked_up") /\ S[r].n = 0)
Write(r, b) == IF R[r].known > -1 /\ b > R[r].known + 1 THEN "gap" ELSE "write"
AfterBegin(r, b) == IF LooksUp(r, b) THEN "release" ELSE Write(r, b)

\* protocol.stage.Stager.begin: protocol.checkpoint.Checkpoint.require_offsets, protocol.history.History.bind
StageBegin(r) ==
    /\ S[r].pc = "stage"
    /\ LET b == S[r].b
       IN IF InError(r)
          THEN S' = [S EXCEPT ![r].pc = "dead"] /\ UNCHANGED <<wal, R, G>>
          ELSE IF ~HasOffsets(b)
          THEN StageFails(r, "no offsets") /\ UNCHANGED <<wal, R>>
          ELSE IF Fixed("own_offsets") /\ ck.off[b + 1] # S[r].x    \* Stager._refuse_foreign: planned by another query
          THEN S' = [S EXCEPT ![r].pc = "dead"] /\ UNCHANGED <<wal, R, G>>
          ELSE IF wal # 0 /\ R[r].own # wal /\ ck.q # wal /\ BUG # "query_id_not_checked"
          THEN StageFails(r, "owner") /\ UNCHANGED <<wal, R>>
          ELSE IF wal # 0 /\ S[r].q # wal /\ Fixed("running_query_asked") /\ BUG # "query_id_not_checked"
          THEN StageFails(r, "owner") /\ UNCHANGED <<wal, R>>      \* spark.staging._check_query
          ELSE IF S[r].q # R[r].own /\ S[r].q # ck.q               \* the same, of a checkpoint that is not the query's own
          THEN S' = [S EXCEPT ![r].pc = "dead"] /\ UNCHANGED <<wal, R, G>>
          ELSE /\ wal' = IF wal = 0 THEN ck.q ELSE wal
               /\ R' = [R EXCEPT ![r].own = wal']
               /\ S' = [S EXCEPT ![r].f = ck.off[b + 1],
                                 ![r].pc = IF Fixed("stager_term") THEN "term"
                                           ELSE IF wal = 0 THEN Write(r, b) ELSE AfterBegin(r, b)]
               /\ UNCHANGED G
    /\ UNCHANGED <<ck, terms, man, rel, prog, mark, low, C, T>>

\* The repair "own_offsets" refuses an entry that another plan wrote: Spark keeps the time of planning in the entry and in
\* the execution at hand.  Where Spark does not tell it, "stager_term" takes its place:
\* after it read the offsets a stager checks whether it was superseded.  If another query wrote
\* them, its run had claimed the role before, and the rows in hand are not what these offsets say.
StageTerm(r) ==
    /\ S[r].pc = "term"
    /\ S' = [S EXCEPT ![r].pc = IF Superseded("stager", S[r].t) THEN "dead" ELSE AfterBegin(r, S[r].b)]
    /\ UNCHANGED <<ck, store, R, C, T, G>>

\* protocol.stage.Stager._is_replay: what the release says counts once low water was read
StageRelease(r) ==
    /\ S[r].pc = "release"
    /\ LET b == S[r].b
           found == IF rel[b] = NoAtt THEN "no release"
                    ELSE IF rel[b].f # S[r].f /\ BUG # "no_fingerprint_check_at_replay" THEN "another plan" ELSE "replay"
       IN S' = [S EXCEPT ![r].pc = found]
    /\ UNCHANGED <<ck, store, R, C, T, G>>

\* protocol.stage.Stager._refuse_collected, after the release was looked for
StageLowWater(r) ==
    /\ S[r].pc \in {"no release", "another plan", "replay"}
    /\ LET b == S[r].b IN
       IF b <= low /\ BUG # "no_low_water_check_at_stage"
       THEN /\ S' = [S EXCEPT ![r].pc = IF BUG = "collected_is_always_gone" THEN "gone" ELSE "collected"]
            /\ UNCHANGED G
       ELSE IF S[r].pc = "another plan" THEN StageFails(r, "divergent")
       ELSE /\ S' = [S EXCEPT ![r].pc = IF @ = "no release" THEN Write(r, b) ELSE "commit"]
            /\ G' = IF S[r].pc = "replay" /\ S[r].q # wal THEN [G EXCEPT !.bad = @ \cup {"I8"}] ELSE G
    /\ UNCHANGED <<ck, store, R, C, T>>

\* The same, of a batch that was collected: a superseded query, or one whose batch another one completed, is fenced and
\* blames no history.  The term, then the checkpoint.
StageCollected(r) ==
    /\ S[r].pc \in {"collected", "completed", "gone"}
    /\ IF S[r].pc = "gone" THEN StageFails(r, "gone")
       ELSE /\ S' = [S EXCEPT ![r].pc = IF @ = "collected"
                                        THEN IF Superseded("stager", S[r].t) THEN "dead" ELSE "completed"
                                        ELSE IF ck.done > S[r].b THEN "dead" ELSE "gone"]
            /\ UNCHANGED G
    /\ UNCHANGED <<ck, store, R, C, T>>

\* protocol.stage.Stager._refuse_gap: an older process may have staged since
StageGap(r) ==
    /\ S[r].pc = "gap"
    /\ LET known == Max({R[r].known, low} \cup {b \in Traces : b > low}) IN
       /\ R' = [R EXCEPT ![r].known = known]
       /\ IF S[r].b > known + 1 THEN StageFails(r, "missing") ELSE S' = [S EXCEPT ![r].pc = "write"] /\ UNCHANGED G
    /\ UNCHANGED <<ck, store, C, T>>

\* protocol.stage.Stager.end: the Spark job, then the manifest (its name is nobody else's: an ambiguous answer reads
\* back as its own); protocol.history.History.note_staged
StageManifest(r) ==
    /\ S[r].pc = "write"
    /\ LET b == S[r].b
           att == [t |-> S[r].t, n |-> S[r].n + 1, r |-> r, f |-> S[r].f, x |-> S[r].x]
       IN /\ man' = man \cup {[b |-> b, t |-> att.t, n |-> att.n, r |-> r, f |-> att.f, x |-> att.x]}
          /\ R' = [R EXCEPT ![r].staged[b] = att, ![r].known = Max({@, b}),
                            ![r].gate = IF Fixed("fresh_gate") THEN Min({@, b - 1}) ELSE @]
          /\ S' = [S EXCEPT ![r].n = @ + 1, ![r].pc = "commit"]
          /\ G' = IF S[r].q # wal THEN [G EXCEPT !.bad = @ \cup {"I8"}] ELSE G
    /\ UNCHANGED <<ck, wal, terms, rel, prog, mark, low, C, T>>

\* Spark writes commits/N, or finds that another query did and dies.
SparkCommit(r) ==
    /\ S[r].pc = "commit"
    /\ LET b == S[r].b IN
       IF S[r].h = ck.h /\ ck.done = b /\ HasOffsets(b)
       THEN /\ ck' = [ck EXCEPT !.done = @ + 1]
            /\ G' = [G EXCEPT !.done = @ \cup {<<ck.q, b, ck.off[b + 1]>>},
                             !.won[b] = IF R[r].staged[b] = NoAtt THEN @ ELSE R[r].staged[b]]
            /\ S' = [S EXCEPT ![r].pc = "plan", ![r].b = @ + 1, ![r].f = 0, ![r].x = 0]
       ELSE /\ S' = [S EXCEPT ![r].pc = "dead"]
            /\ UNCHANGED <<ck, G>>
    /\ UNCHANGED <<store, R, C, T>>

\* The query ends, for whatever reason, and is started again by the same process.
Restart(r) ==
    /\ S[r].pc \in {"plan", "stage", "write", "commit", "dead"} /\ G.restarts < MaxRestarts /\ ~InError(r)
    /\ ~\E a \in G.alarm : TRUE
    /\ S' = [S EXCEPT ![r].pc = "off", ![r].f = 0, ![r].x = 0, ![r].t = 0]
    /\ G' = [G EXCEPT !.restarts = @ + 1]
    /\ UNCHANGED <<ck, store, R, C, T>>

-----------------------------------------------------------------------------
(* A committer: gate and release *)

CommitterFails(r, s, why) == C' = [C EXCEPT ![r][s].pc = "fail", ![r][s].why = why]

\* protocol.committer.Committer.deliver_with_retries: the work of a newer process looks like damage to a superseded one
Fail(r, s) ==
    /\ C[r][s].pc = "fail"
    /\ LET c == C[r][s] IN
       IF Superseded(s, c.term)
       THEN C' = [C EXCEPT ![r][s].pc = "fenced", ![r][s].why = ""] /\ UNCHANGED G
       ELSE /\ C' = [C EXCEPT ![r][s].pc = "alarm"]
            /\ G' = Shout(G, c.b, c.why, FalseAlarm(c.why))
    /\ UNCHANGED <<ck, store, R, S, T>>

\* A release is known: begin to deliver it, or look first at the work of an older process.  protocol.committer.Committer.deliver_next
Taken(r, s, c, b, att) ==
    LET over == att.r # r \/ c.began = b
        last == BUG = "group_marked_before_its_last" /\ c.upto > c.marked /\ b - c.marked = Longest
        next == IF over THEN "progress" ELSE IF BUG = "marker_before_delivery" \/ last THEN "mark" ELSE "deliver"
    IN [c EXCEPT !.b = b, !.att = att, !.began = b, !.rows = NoRows, !.pc = next, !.fresh = ~over,
                 !.seen = ~over /\ G.marked[<<s, b>>] # 0]

\* protocol.committer.Committer.deliver_next: a batch that was released waits, too, while a checkpoint that was rolled back has not
\* completed it again.  rec: what earlier runs left is not delivered yet.
AskGate(r, s) ==
    /\ R[r].phase = "open" /\ C[r][s].pc = "idle" /\ wal # 0
    /\ \A x \in Serves[r] : C[r][x].pc \notin {"claim", "load"}       \* Run.open claims all terms before anything is delivered
    /\ LET c == C[r][s]
           due == IF BUG = "marker_without_order" THEN {b \in Batches : b > c.marked} ELSE {c.upto + 1} \cap Batches
       IN \/ \E b \in due :
              LET remembered == b <= R[r].gate
                  open == remembered \/ ck.done > b \/ (BUG = "gate_ignored" /\ HasOffsets(b))
              IN /\ open
                 /\ R' = IF ~remembered THEN [R EXCEPT ![r].gate = Max({@, ck.done - 1})] ELSE R
                 /\ C' = [C EXCEPT ![r][s].pc = "office", ![r][s].b = b, ![r][s].att = R[r].staged[b]]
          \/ /\ c.rec /\ c.upto = c.marked      \* what is delivered is marked first: CloseGroup
             /\ \A b \in due : b > R[r].gate /\ ck.done <= b
             /\ C' = [C EXCEPT ![r][s].rec = FALSE]
             /\ UNCHANGED R
    /\ UNCHANGED <<ck, store, S, T, G>>

\* The repair "fresh_gate" also takes what this run staged before it asks the gate, not after (att in AskGate).
\* protocol.committer.Committer.deliver_next: a superseded committer decides nothing; then protocol.release.Releaser.release and ._decide
\* as far as memory goes
CheckOffice(r, s) ==
    /\ C[r][s].pc = "office"
    /\ \E skip \in {FALSE, MaySkipTerm(s) /\ (C[r][s].upto > C[r][s].marked \/ BUG = "group_never_checked")} :
       LET b == C[r][s].b IN
       C' = [C EXCEPT ![r][s] =
                IF Superseded(s, @.term) /\ BUG \notin {"term_not_checked_at_release", "term_not_rechecked"} /\ ~skip
                THEN [@ EXCEPT !.pc = "fenced"]
                ELSE IF R[r].relm[b] # NoAtt THEN Taken(r, s, @, b, R[r].relm[b])
                ELSE IF Fixed("fresh_gate") /\ @.att # NoAtt THEN [@ EXCEPT !.pc = "create"]
                ELSE IF ~Fixed("fresh_gate") /\ R[r].staged[b] # NoAtt THEN [@ EXCEPT !.pc = "create", !.att = R[r].staged[b]]
                ELSE [@ EXCEPT !.pc = "find"]]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

NothingYet(r, s) ==       \* the same, while the WAL has no batch
    /\ R[r].phase = "open" /\ C[r][s].pc = "idle" /\ wal = 0 /\ C[r][s].rec
    /\ C' = [C EXCEPT ![r][s].rec = FALSE]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* Releaser._adopt: the release is there; its manifest must be too.
Adopt(r, s, b) ==
    IF ~ManifestOf(b, rel[b])
    THEN CommitterFails(r, s, "corrupt") /\ UNCHANGED R
    ELSE IF Fixed("confirm_release")
    THEN C' = [C EXCEPT ![r][s].pc = "confirm", ![r][s].att = rel[b]] /\ UNCHANGED R
    ELSE /\ R' = [R EXCEPT ![r].relm[b] = rel[b]]
         /\ C' = [C EXCEPT ![r][s] = Taken(r, s, @, b, rel[b])]

\* protocol.release.Releaser._decide: find the release
FindRelease(r, s) ==
    /\ C[r][s].pc = "find"
    /\ LET b == C[r][s].b IN
       IF rel[b] # NoAtt THEN Adopt(r, s, b)
       ELSE C' = [C EXCEPT ![r][s].pc = "pick"] /\ UNCHANGED R
    /\ UNCHANGED <<ck, store, S, T, G>>

\* protocol.release.Releaser._highest_manifest
PickManifest(r, s) ==
    /\ C[r][s].pc = "pick"
    /\ LET b == C[r][s].b
           ms == {m \in man : m.b = b}
           best(m) == \A o \in ms : IF BUG = "lowest_manifest_wins"
                                    THEN m.t < o.t \/ (m.t = o.t /\ m.n <= o.n)
                                    ELSE m.t > o.t \/ (m.t = o.t /\ m.n >= o.n)
       IN IF ms = {} THEN CommitterFails(r, s, "missing")
          ELSE LET m == CHOOSE x \in ms : best(x) IN
               C' = [C EXCEPT ![r][s].att = [t |-> m.t, n |-> m.n, r |-> m.r, f |-> m.f, x |-> m.x],
                              ![r][s].pc = IF BUG = "no_fingerprint_check_at_release" THEN "create" ELSE "verify"]
    /\ LET b == C[r][s].b
           won == G.won[b]
       IN G' = IF \E m \in man : m.b = b /\ C'[r][s].pc # "fail" /\ m.t = C'[r][s].att.t /\ m.n = C'[r][s].att.n
                                 /\ (m.t < won.t \/ (m.t = won.t /\ m.n < won.n))
               THEN [G EXCEPT !.bad = @ \cup {"I7"}] ELSE G
    /\ UNCHANGED <<ck, store, R, S, T>>

\* protocol.release.Releaser._check_against_checkpoint
Verify(r, s) ==
    /\ C[r][s].pc = "verify"
    /\ LET b == C[r][s].b IN
       IF ~HasOffsets(b) THEN CommitterFails(r, s, "no offsets")
       ELSE IF ck.off[b + 1] # C[r][s].att.f THEN CommitterFails(r, s, "divergent")
       ELSE C' = [C EXCEPT ![r][s].pc = IF Fixed("fresh_gate") THEN "gate again" ELSE "create"]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* The repair "fresh_gate": a gate that another run's manifest passes is read now, not remembered.
GateAgain(r, s) ==
    /\ C[r][s].pc = "gate again"
    /\ IF ck.done > C[r][s].b \/ BUG = "gate_ignored"
       THEN C' = [C EXCEPT ![r][s].pc = "create"] /\ UNCHANGED R
       ELSE /\ C' = [C EXCEPT ![r][s].pc = "idle", ![r][s].b = -1, ![r][s].att = NoAtt]
            /\ R' = [R EXCEPT ![r].gate = Max({Min({@, C[r][s].b - 1}), ck.done - 1})]
    /\ UNCHANGED <<ck, store, S, T, G>>

\* protocol.release.Releaser._decide: create the release, stores.creation.create_once; the second process adopts it
CreateRelease(r, s) ==
    /\ C[r][s].pc = "create"
    /\ LET b == C[r][s].b
           mine == [C[r][s].att EXCEPT !.r = r]
           created == rel[b] = NoAtt \/ rel[b] = mine        \* the latter: an earlier answer was lost
           known == [R EXCEPT ![r].relm[b] = mine]
       IN IF BUG = "release_not_pinned"
          THEN R' = known /\ C' = [C EXCEPT ![r][s] = Taken(r, s, @, b, mine)] /\ UNCHANGED <<rel, G>>
          ELSE IF created
          THEN /\ rel' = [rel EXCEPT ![b] = mine]
               /\ \/ /\ IF Fixed("confirm_release")
                        THEN C' = [C EXCEPT ![r][s].pc = "confirm", ![r][s].att = mine] /\ UNCHANGED R
                        ELSE R' = known /\ C' = [C EXCEPT ![r][s] = Taken(r, s, @, b, mine)]
                     /\ G' = [G EXCEPT !.rel[b] = IF @ = NoAtt THEN mine ELSE @]
                  \/ /\ Ambiguous /\ rel[b] = NoAtt
                     /\ G' = [G EXCEPT !.amb = @ + 1, !.rel[b] = IF @ = NoAtt THEN mine ELSE @]
                     /\ UNCHANGED <<R, C>>
          ELSE /\ IF rel[b].f # mine.f /\ BUG # "no_fingerprint_check_at_release"
                  THEN CommitterFails(r, s, "divergent") /\ UNCHANGED R
                  ELSE Adopt(r, s, b)
               /\ UNCHANGED <<rel, G>>
    /\ UNCHANGED <<ck, wal, terms, man, prog, mark, low, S, T>>

\* The repair "confirm_release": compare with the checkpoint's present query id and offsets AFTER the release was created or found.
\* The stager reads the release after Spark wrote the offsets: one of the two sees the other.
Confirm(r, s) ==
    /\ C[r][s].pc = "confirm"
    /\ LET b == C[r][s].b
           att == C[r][s].att
       IN IF (ck.q # wal \/ (HasOffsets(b) /\ ck.off[b + 1] # att.f)) /\ BUG # "no_fingerprint_check_at_release"
          THEN CommitterFails(r, s, "divergent") /\ UNCHANGED R
          ELSE /\ R' = [R EXCEPT ![r].relm[b] = att]
               /\ C' = [C EXCEPT ![r][s] = Taken(r, s, @, b, att)]
    /\ UNCHANGED <<ck, store, S, T, G>>

-----------------------------------------------------------------------------
(* A committer: taking over, delivering, marking *)

\* What a run need not remember of batches that all its sinks have: protocol.run.Run._forget_delivered
Forget(r, marked) ==
    [R EXCEPT ![r].staged = [b \in Batches |-> IF b <= marked THEN NoAtt ELSE @[b]],
              ![r].relm = [b \in Batches |-> IF b <= marked THEN NoAtt ELSE @[b]]]

Passed(r, s, b) ==
    /\ C' = [C EXCEPT ![r][s] = [@ EXCEPT !.pc = "due", !.marked = b, !.upto = b, !.b = -1, !.att = NoAtt, !.rows = NoRows,
                                          !.seen = FALSE, !.fresh = FALSE, !.tgt = -1]]
    /\ R' = Forget(r, Min({b} \cup {C[r][x].marked : x \in Serves[r] \ {s}}))

\* What an at-most-once delivery finds recorded and did not send itself may be lost: protocol.progress.keep_last_recorded
Kept(s, b, rows) ==
    IF Kind[s] # "at_most_once" THEN {}
    ELSE {<<s, b, g, Recorded(s, b, g)>> : g \in {x \in Segs(b) : Recorded(s, b, x) > rows[x]}}

Reloaded(s, b, rows) ==
    [g \in 1..MaxSegs |-> IF g \in Segs(b) /\ Kind[s] # "transactional" THEN Max({rows[g], Recorded(s, b, g)}) ELSE rows[g]]

\* protocol.batch_delivery.BatchDelivery.reload_progress, called by protocol.committer.Committer._read_progress
ReadProgress(r, s) ==
    /\ C[r][s].pc \in {"progress", "progress again"}
    /\ LET b == C[r][s].b
           again == C[r][s].pc = "progress again"
           ignored == BUG = "progress_not_read_at_takeover" /\ ~again
       IN /\ C' = [C EXCEPT ![r][s].rows = IF ignored THEN @ ELSE Reloaded(s, b, @),
                            ![r][s].seen = IF again THEN @ ELSE G.marked[<<s, b>>] # 0,
                            ![r][s].pc = IF again \/ BUG = "second_read_missing" THEN "deliver" ELSE "marker"]
          /\ G' = IF ignored THEN G ELSE [G EXCEPT !.dead = @ \cup Kept(s, b, C[r][s].rows)]
    /\ UNCHANGED <<ck, store, R, S, T>>

\* protocol.committer.Committer._find_marked: the marker, after progress
ReadMarker(r, s) ==
    /\ C[r][s].pc = "marker"
    /\ LET b == C[r][s].b IN
       IF Marked(s, b) THEN Passed(r, s, b)
       ELSE C' = [C EXCEPT ![r][s].pc = IF BUG = "newest_marker_not_read_at_takeover" THEN "deliver" ELSE "markers"] /\ UNCHANGED R
    /\ UNCHANGED <<ck, store, S, T, G>>

\* The same: a later marker stands for this batch too, which had no marker or whose marker was collected.
ListMarkers(r, s) ==
    /\ C[r][s].pc = "markers"
    /\ LET newest == NewestMarker(s) IN
       C' = IF newest < C[r][s].b THEN [C EXCEPT ![r][s].pc = "deliver"]
            ELSE [C EXCEPT ![r][s].pc = "newest", ![r][s].tgt = newest]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

ReadNewest(r, s) ==
    /\ C[r][s].pc = "newest"
    /\ IF Marked(s, C[r][s].tgt) THEN Passed(r, s, C[r][s].tgt)
       ELSE C' = [C EXCEPT ![r][s].pc = "deliver", ![r][s].tgt = -1] /\ UNCHANGED R
    /\ UNCHANGED <<ck, store, S, T, G>>

\* protocol.batch_delivery.BatchDelivery._attempt: tasks for the open segments go to the dispatcher
StartTasks(r, s) ==
    /\ C[r][s].pc = "deliver"
    /\ LET c == C[r][s] IN
       /\ T' = [T EXCEPT ![r][s] = [x \in Slots |->
                  IF x = 0 THEN @[0]
                  ELSE IF x \in Segs(c.b) /\ c.rows[x] < Size(c.b, x)
                  THEN [pc |-> "load", b |-> c.b, g |-> x, k |-> c.rows[x], att |-> c.att, term |-> c.term,
                        late |-> FALSE, seen |-> c.seen, fresh |-> c.fresh /\ Len(Shape[c.b + 1]) = 1]
                  ELSE NoTask]]
       /\ C' = [C EXCEPT ![r][s].pc = "wait"]
    /\ UNCHANGED <<ck, store, R, S, G>>

Live(r, s) == {x \in Slots \ {0} : T[r][s][x].pc # "none"}
Ended == {"done", "failed", "fenced", "corrupt"}

\* Give up this attempt and begin the next: protocol.batch_delivery.BatchDelivery._fail and ._settle
Again(r, s, tasks) ==
    LET c == C[r][s]
        settled == [g \in 1..MaxSegs |-> IF g \in Live(r, s) THEN Max({c.rows[g], T[r][s][g].k}) ELSE c.rows[g]]
    IN /\ C' = [C EXCEPT ![r][s].rows = Reloaded(s, c.b, settled), ![r][s].pc = "deliver", ![r][s].fresh = FALSE]
       /\ T' = [T EXCEPT ![r][s] = tasks]
       /\ G' = [G EXCEPT !.retries[s] = @ + 1, !.dead = @ \cup Kept(s, c.b, settled)]

Unslotted(r, s) == [x \in Slots |-> IF x = 0 THEN T[r][s][0] ELSE NoTask]

\* The batch is delivered and the next one is taken before any marker.
MayGoOn(r, s) == Grouped(s) /\ C[r][s].b - C[r][s].marked < Longest
GoOn(r, s) ==
    C' = [C EXCEPT ![r][s] = [@ EXCEPT !.pc = IF BUG = "delivered_collected" THEN "due" ELSE "idle", !.upto = C[r][s].b, !.b = -1,
                                       !.att = NoAtt, !.rows = NoRows, !.seen = FALSE, !.fresh = FALSE]]

\* The backlog is used up, or enough of it is delivered: one marker, of the newest.
CloseGroup(r, s) ==
    /\ C[r][s].pc = "idle" /\ C[r][s].upto > C[r][s].marked /\ BUG # "group_never_closed"
    /\ LET b == C[r][s].upto IN
       C' = [C EXCEPT ![r][s] = [@ EXCEPT !.pc = "mark", !.b = b, !.att = R[r].relm[b]]]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* protocol.batch_delivery.BatchDelivery._attempt: all results are there.
Join(r, s) ==
    /\ C[r][s].pc = "wait"
    /\ \A x \in Live(r, s) : T[r][s][x].pc \in Ended
    /\ LET all == {T[r][s][x].pc : x \in Live(r, s)} IN
       IF "fenced" \in all \/ "corrupt" \in all
       THEN /\ IF "fenced" \in all THEN C' = [C EXCEPT ![r][s].pc = "fenced"] ELSE CommitterFails(r, s, "corrupt")
            /\ T' = [T EXCEPT ![r][s] = Unslotted(r, s)]
            /\ UNCHANGED G
       ELSE IF "failed" \in all THEN Again(r, s, Unslotted(r, s))
       ELSE /\ IF BUG = "marker_before_delivery"
               THEN C' = [C EXCEPT ![r][s] = [@ EXCEPT !.pc = "due", !.marked = C[r][s].b, !.b = -1, !.att = NoAtt]]
               ELSE IF MayGoOn(r, s) THEN GoOn(r, s) ELSE C' = [C EXCEPT ![r][s].pc = "mark"]
            /\ T' = [T EXCEPT ![r][s] = Unslotted(r, s)]
            /\ UNCHANGED G
    /\ UNCHANGED <<ck, store, R, S>>

\* protocol.dispatch.DispatcherLostError: the delivery job is given up, a task of it goes on unseen (an executor that was cut off).
\* With the repair "renew_term" the committer claims its next term before it sends again.
LoseDispatcher(r, s) ==
    /\ C[r][s].pc = "wait" /\ G.lost < MaxLost /\ T[r][s][0].pc = "none"
    /\ \E x \in Live(r, s) :
        /\ T[r][s][x].pc \notin Ended
        /\ LET c == C[r][s]
               orphaned == [y \in Slots |-> IF y = 0 THEN T[r][s][x] ELSE NoTask]
           IN /\ C' = [C EXCEPT ![r][s].rows = Reloaded(s, c.b, @), ![r][s].fresh = FALSE,
                                ![r][s].pc = IF Fixed("renew_term") THEN "renew" ELSE "deliver"]
              /\ T' = [T EXCEPT ![r][s] = orphaned]
              /\ G' = [G EXCEPT !.retries[s] = @ + 1, !.lost = @ + 1, !.dead = @ \cup Kept(s, c.b, c.rows)]
    /\ UNCHANGED <<ck, store, R, S>>

RenewTerm(r, s) ==
    /\ C[r][s].pc = "renew"
    /\ IF Superseded(s, C[r][s].term)
       THEN C' = [C EXCEPT ![r][s].pc = "fenced"] /\ UNCHANGED terms
       ELSE /\ terms' = [terms EXCEPT ![s] = @ \cup {C[r][s].term + 1}]
            /\ C' = [C EXCEPT ![r][s].pc = "progress again", ![r][s].term = @ + 1]
    /\ UNCHANGED <<ck, wal, man, rel, prog, mark, low, R, S, T, G>>

\* protocol.committer.Committer._mark
CreateMarker(r, s) ==
    /\ C[r][s].pc = "mark"
    /\ LET c == C[r][s]
           b == c.b
           fresh == ~Marked(s, b)
           mine == \E m \in mark : m.s = s /\ m.b = b /\ m.r = r
           early == BUG = "marker_before_delivery" \/ (BUG = "group_marked_before_its_last" /\ c.upto > c.marked /\ c.upto < b)
           go == IF early THEN C' = [C EXCEPT ![r][s].pc = "deliver"] /\ UNCHANGED R ELSE Passed(r, s, b)
           put == mark' = mark \cup {[s |-> s, b |-> b, r |-> r]}
           stands == {x \in Batches : x > c.marked /\ x <= b}
           noted == [G EXCEPT !.marked = [y \in Sinks \X Batches |->
                        IF y[1] # s \/ y[2] \notin stands \/ @[y] # 0 THEN @[y]
                        ELSE IF y[2] = b THEN c.att.x ELSE G.rel[y[2]].x]]
       IN \/ fresh /\ put /\ go /\ G' = noted
          \/ fresh /\ Ambiguous /\ put /\ G' = [noted EXCEPT !.amb = @ + 1] /\ UNCHANGED <<C, R>>
          \/ ~fresh /\ (mine \/ ~Superseded(s, c.term)) /\ go /\ UNCHANGED <<mark, G>>
          \/ ~fresh /\ ~mine /\ Superseded(s, c.term) /\ C' = [C EXCEPT ![r][s].pc = "fenced"] /\ UNCHANGED <<mark, R, G>>
    /\ UNCHANGED <<ck, wal, terms, man, rel, prog, low, S, T>>

-----------------------------------------------------------------------------
(* One delivery task: delivery.SegmentDelivery *)

Put(r, s, x, task) == T' = [T EXCEPT ![r][s][x] = IF x = 0 /\ task.pc \in Ended THEN NoTask ELSE task]

AtMostOnce(s) == Kind[s] = "at_most_once"
BeforeSend(s) == IF AtMostOnce(s) THEN "record" ELSE "send"
AfterCheck(s) == IF BUG = "progress_before_send_for_at_least_once" THEN "record" ELSE BeforeSend(s)
FirstStep(s) == IF BUG = "term_not_rechecked" THEN BeforeSend(s)
                ELSE IF AtMostOnce(s) /\ Fixed("term_after_record") THEN "record" ELSE "check"
NextChunk(s, t) == [t EXCEPT !.k = @ + 1, !.pc = IF t.k + 1 = Size(t.b, t.g) THEN "done" ELSE FirstStep(s)]
MarkerFollows(t) == Len(Shape[t.b + 1]) = 1 /\ t.k + 1 = Size(t.b, t.g)      \* Records.marker_follows

\* SegmentTask.term_checked: the first chunk of a batch of one segment needs only the check before the release.
\* log.segment_reader.load_segment (collected with its manifest), protocol.positions.Positions.begin: a target that is ahead of the batch
\* belongs to a newer WAL
TaskLoad(r, s, x) ==
    /\ T[r][s][x].pc = "load"
    /\ LET t == T[r][s][x]
           l == G.ledger[<<s, t.g>>]
           from == IF Kind[s] = "transactional" /\ l.b = t.b THEN l.k ELSE t.k
       IN IF ~ManifestOf(t.b, t.att) \/ (Kind[s] = "transactional" /\ l.b > t.b) THEN Put(r, s, x, [t EXCEPT !.pc = "corrupt"])
          ELSE Put(r, s, x, [t EXCEPT !.k = from, !.fresh = FALSE,
                                      !.pc = IF from = Size(t.b, t.g) THEN "done"
                                             ELSE IF t.fresh THEN AfterCheck(s) ELSE FirstStep(s)])
    /\ UNCHANGED <<ck, store, R, S, C, G>>

\* log.terms.Term.check, before a send (Looks.look), or "again" between record and send (_send_at_most_once)
TaskCheck(r, s, x) ==
    /\ T[r][s][x].pc \in {"check", "check again"}
    /\ \E skip \in {FALSE, MaySkipTerm(s) \/ ByTime(s)} :
       LET t == T[r][s][x] IN
       Put(r, s, x, [t EXCEPT !.pc = IF Superseded(s, t.term) /\ ~skip THEN "fenced"
                                     ELSE IF @ = "check again" THEN "send"
                                     ELSE AfterCheck(s)])
    /\ UNCHANGED <<ck, store, R, S, C, G>>

HasAll(s, b) == \A g \in Segs(b) : \A k \in 1..Size(b, g) : G.cnt[<<s, b, g, k>>] > 0

Repeats(cnt, s, b, g) ==
    LET over[k \in 0..Size(b, g)] == IF k = 0 THEN 0 ELSE over[k - 1] + (IF cnt[<<s, b, g, k>>] > 1 THEN cnt[<<s, b, g, k>>] - 1 ELSE 0)
    IN over[Size(b, g)]

\* Side by side lie segments of one batch only: for each of them, one chunk may be in flight.
RepeatsOf(cnt, s, g) ==
    LET sum[b \in -1..(NB - 1)] == IF b = -1 THEN 0 ELSE sum[b - 1] + (IF g \in Segs(b) THEN Repeats(cnt, s, b, g) ELSE 0)
    IN sum[NB - 1]

\* I7 where a target drops repeats: a superseded committer goes on through at most the group it is in, and where looks go by
\* time through at most the batch it is in, with the very rows that were released.
AsReleased(t) == G.rel[t.b].t = t.att.t /\ G.rel[t.b].n = t.att.n
MayBeLate(r, s, t, ignored) ==
    \/ Group > 1 /\ DropsRepeats(s) /\ (ignored \/ (t.b <= C[r][s].marked + Longest /\ AsReleased(t)))
    \/ ByTime(s) /\ (ignored \/ AsReleased(t))

\* Every crash is followed by a takeover, if by anything: a term each.
Events(s) == Max({0} \cup terms[s]) - 1 + G.retries[s]

\* The effect of a send on the target and on the laws.  `x` is the slot: 0 is a task that was given up.
Sent(r, s, x, t) ==
    LET cell == <<s, t.b, t.g, t.k + 1>>
        tag == <<t.att.t, t.att.n>>
        l == G.ledger[<<s, t.g>>]
        ignored == \/ Kind[s] = "transactional" /\ (l.b > t.b \/ (l.b = t.b /\ l.k >= t.k + 1))
                   \/ Kind[s] = "idempotent" /\ G.cnt[cell] > 0 /\ G.tags[t.b] = {tag}
        cnt == IF ignored THEN G.cnt ELSE [G.cnt EXCEPT ![cell] = @ + 1]
        gone == Superseded(s, t.term)
        after == x = 0 /\ G.marked[<<s, t.b>>] # 0
        broken ==
            (IF <<wal, t.b, t.att.x>> \notin G.done THEN {"I1"} ELSE {})
            \cup (IF ~gone /\ x # 0 /\ t.seen /\ ~ignored THEN {"I3"} ELSE {})
            \cup (IF after /\ t.late /\ ~ignored THEN {"I3"} ELSE {})
            \cup (IF ~gone /\ \E b \in Batches : b < t.b /\ G.marked[<<s, b>>] = 0 /\ (AtMostOnce(s) \/ ~HasAll(s, b))
                  THEN {"I3"} ELSE {})
            \cup (IF Kind[s] \in {"idempotent", "transactional"} /\ cnt[cell] > 1 THEN {"I4"} ELSE {})
            \cup (IF Kind[s] = "plain" /\ RepeatsOf(cnt, s, t.g) > Events(s) THEN {"I5"} ELSE {})
            \cup (IF AtMostOnce(s) /\ cnt[cell] > 1 THEN {"AtMostOnce"} ELSE {})
            \cup (IF gone /\ t.late /\ ~MayBeLate(r, s, t, ignored) THEN {"I7"} ELSE {})
    IN [G EXCEPT !.cnt = cnt, !.tags[t.b] = @ \cup {tag}, !.bad = @ \cup broken,
                 !.ledger[<<s, t.g>>] = IF Kind[s] = "transactional" /\ ~ignored THEN [term |-> t.term, b |-> t.b, k |-> t.k + 1] ELSE @]

\* SegmentDelivery._write: success, or a failure with or without effect (support.calls.TimedCall, SinkFailedError)
TaskSend(r, s, x) ==
    /\ T[r][s][x].pc = "send"
    /\ LET t0 == T[r][s][x]
           t == [t0 EXCEPT !.late = @ \/ Superseded(s, t0.term) \/ (x = 0 /\ G.marked[<<s, t0.b>>] # 0)]
           recordedFirst == AtMostOnce(s) \/ BUG = "progress_before_send_for_at_least_once"
           refused == Kind[s] = "transactional" /\ G.ledger[<<s, t.g>>].term > t.term
           sent == IF recordedFirst \/ Kind[s] = "transactional" \/ MarkerFollows(t) THEN NextChunk(s, t) ELSE [t EXCEPT !.pc = "record"]
           failed == [IF recordedFirst THEN NextChunk(s, t) ELSE t EXCEPT !.pc = "failed"]   \* at most once: never sent again
           letter == IF AtMostOnce(s) THEN {<<s, t.b, t.g, t.k + 1>>} ELSE {}
       IN IF refused THEN Put(r, s, x, [t EXCEPT !.pc = "fenced"]) /\ UNCHANGED G
          ELSE \/ Put(r, s, x, sent) /\ G' = Sent(r, s, x, t0)
               \/ /\ G.fails < MaxRetries
                  /\ Put(r, s, x, failed)
                  /\ \/ G' = [Sent(r, s, x, t0) EXCEPT !.fails = @ + 1, !.dead = @ \cup letter]
                     \/ G' = [G EXCEPT !.fails = @ + 1, !.dead = @ \cup letter]
    /\ UNCHANGED <<ck, store, R, S, C>>

\* Records.create, stores.creation.create_once.  Another's record: this one stops.  A record by time may be left out.
TaskRecord(r, s, x) ==
    /\ T[r][s][x].pc = "record"
    /\ LET t == T[r][s][x]
           me == <<r, t.term, IF x = 0 THEN "lost" ELSE "live">>
           there == {p \in prog : p.s = s /\ p.b = t.b /\ p.g = t.g /\ p.k = t.k + 1}
           first == AtMostOnce(s) \/ BUG = "progress_before_send_for_at_least_once"
           done == IF ~first THEN NextChunk(s, t)
                   ELSE IF AtMostOnce(s) /\ Fixed("term_after_record") THEN [t EXCEPT !.pc = "check again"]
                   ELSE [t EXCEPT !.pc = "send"]
           put == prog' = prog \cup {[s |-> s, b |-> t.b, g |-> t.g, k |-> t.k + 1, w |-> me]}
       IN \/ DropsRepeats(s) /\ Put(r, s, x, NextChunk(s, t)) /\ UNCHANGED <<prog, G>>
          \/ there = {} /\ put /\ Put(r, s, x, done) /\ UNCHANGED G
          \/ there = {} /\ Ambiguous /\ put /\ G' = [G EXCEPT !.amb = @ + 1] /\ UNCHANGED T
          \/ /\ there # {}
             /\ IF BUG = "exists_taken_for_mine" \/ \E p \in there : p.w = me
                THEN Put(r, s, x, done)
                ELSE Put(r, s, x, [t EXCEPT !.pc = IF Superseded(s, t.term) THEN "fenced" ELSE "failed"])
             /\ UNCHANGED <<prog, G>>
    /\ UNCHANGED <<ck, wal, terms, man, rel, mark, low, R, S, C>>

-----------------------------------------------------------------------------
(* Collecting: protocol.collect.Collector *)

\* Collector.is_due and the reads of .collect; COLLECT_EVERY_BATCHES only makes it rarer
CollectTarget(r, s) ==
    /\ C[r][s].pc = "due"
    /\ LET everywhere == IF BUG = "undelivered_collected" THEN C[r][s].marked
                         ELSE Min({NewestMarker(x) : x \in Sinks})
           target == IF BUG = "delivered_collected" THEN C[r][s].upto ELSE everywhere - Retention
       IN C' = [C EXCEPT ![r][s].pc = IF target > low THEN "collect" ELSE "idle", ![r][s].tgt = IF target > low THEN target ELSE -1]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* protocol.collect.Collector.collect: log.terms.Term.check
CollectCheck(r, s) ==
    /\ C[r][s].pc = "collect"
    /\ C' = [C EXCEPT ![r][s].pc = IF Superseded(s, C[r][s].term) THEN "fenced"
                                   ELSE IF BUG = "low_water_after_deletion" THEN "delete 1" ELSE "raise"]
    /\ UNCHANGED <<ck, store, R, S, T, G>>

\* log.log.Log.raise_low_water: one more created object; the highest counts (log.log.Log.low_water)
RaiseLowWater(r, s) ==
    /\ C[r][s].pc = "raise"
    /\ low' = IF BUG = "low_water_replaced_not_created" THEN C[r][s].tgt ELSE Max({low, C[r][s].tgt})
    /\ C' = [C EXCEPT ![r][s].pc = IF BUG = "low_water_after_deletion" THEN "idle" ELSE "delete 1"]
    /\ UNCHANGED <<ck, wal, terms, man, rel, prog, mark, R, S, T, G>>

\* Collector._delete_through: batch folders, then progress, then markers; a crash leaves the rest to the next collection
Delete(r, s) ==
    /\ C[r][s].pc \in {"delete 1", "delete 2", "delete 3"}
    /\ LET c == C[r][s]
           next == CASE c.pc = "delete 1" -> "delete 2" [] c.pc = "delete 2" -> "delete 3"
                     [] OTHER -> IF BUG = "low_water_after_deletion" THEN "raise" ELSE "idle"
       IN /\ man' = IF c.pc = "delete 1" THEN {m \in man : m.b > c.tgt} ELSE man
          /\ rel' = IF c.pc = "delete 1" THEN [b \in Batches |-> IF b <= c.tgt THEN NoAtt ELSE rel[b]] ELSE rel
          /\ prog' = IF c.pc = "delete 2" THEN {p \in prog : p.b > c.tgt} ELSE prog
          /\ mark' = IF c.pc = "delete 3" THEN {m \in mark : m.b > c.tgt} ELSE mark
          /\ terms' = IF BUG = "terms_deleted" /\ c.pc = "delete 3"
                      THEN [x \in Roles |-> IF terms[x] = {} THEN {} ELSE {Max(terms[x])}] ELSE terms
          /\ C' = [C EXCEPT ![r][s].pc = next, ![r][s].tgt = IF next = "idle" THEN -1 ELSE @]
    /\ UNCHANGED <<ck, wal, low, R, S, T, G>>

-----------------------------------------------------------------------------

QueryStep(r) ==
    \/ BecomeStager(r) \/ LoadBatches(r) \/ SparkStart(r) \/ Plan(r) \/ StageBegin(r) \/ StageTerm(r)
    \/ StageLowWater(r) \/ StageCollected(r) \/ StageGap(r) \/ StageRelease(r) \/ StageManifest(r) \/ SparkCommit(r)

CommitterStep(r, s) ==
    \/ Claim(r, s) \/ Load(r, s) \/ Fail(r, s)
    \/ AskGate(r, s) \/ CheckOffice(r, s) \/ NothingYet(r, s) \/ FindRelease(r, s) \/ PickManifest(r, s) \/ Verify(r, s) \/ GateAgain(r, s)
    \/ CreateRelease(r, s) \/ Confirm(r, s)
    \/ ReadProgress(r, s) \/ ReadMarker(r, s) \/ ListMarkers(r, s) \/ ReadNewest(r, s) \/ StartTasks(r, s) \/ Join(r, s) \/ RenewTerm(r, s)
    \/ CloseGroup(r, s) \/ CreateMarker(r, s)
    \/ CollectTarget(r, s) \/ CollectCheck(r, s) \/ RaiseLowWater(r, s) \/ Delete(r, s)

TaskStep(r, s, x) ==
    TaskLoad(r, s, x) \/ TaskCheck(r, s, x) \/ TaskSend(r, s, x) \/ TaskRecord(r, s, x)

RunStep(r) ==
    \/ Open(r) \/ QueryStep(r)
    \/ \E s \in Serves[r] : CommitterStep(r, s) \/ \E x \in Slots : TaskStep(r, s, x)

Misfortune ==
    \/ Rollback \/ DeleteCheckpoint \/ OtherQuery
    \/ \E r \in Runs : Restart(r) \/ \E s \in Serves[r] : LoseDispatcher(r, s)

Next == Misfortune \/ \E r \in Runs : RunStep(r)

Spec == Init /\ [][Next]_vars

\* In the liveness model every run but the last may crash or stall anywhere; the last one, and the staging, go on.
FairSpec ==
    /\ Spec
    /\ WF_vars(RunStep(NRuns))
    /\ \A r \in Runs : WF_vars(Open(r))
    /\ \A r \in Stages : WF_vars(QueryStep(r))

-----------------------------------------------------------------------------
(* The laws.  Those about one action are noted in G.bad where it happens. *)

Loud(b) == \E a \in G.alarm : a[1] \in {b, -1}

\* Nothing reaches a sink before Spark completed the checkpoint of its batch (of this very history of it).
I1_CompletedOnly == "I1" \notin G.bad

\* Every row of a batch that has a marker reached the sink (at-most-once delivery aside).  That every completed batch
\* gets a marker is EveryCompletedBatchIsMarked; that none is passed over silently is I8.
I2_NothingMissing ==
    \A s \in Sinks : Kind[s] # "at_most_once" => \A b \in Batches : G.marked[<<s, b>>] # 0 => HasAll(s, b)

\* A batch whose marker was there when the committer looked is not delivered again; batches reach a sink in order.
I3_MarkedOnceInOrder == "I3" \notin G.bad

\* Idempotent and transactional sinks: exactly once in effect.
I4_ExactlyOnce == "I4" \notin G.bad

\* Plain sinks: per segment at most one chunk is repeated per takeover (each crash needs one) or failed attempt.
I5_BoundedRepeats == "I5" \notin G.bad

\* One release per batch: never altered, not deleted before every sink has marked it, and rows of one attempt only.
I6_OneRelease ==
    \A b \in Batches :
        /\ Cardinality(G.tags[b]) <= 1
        /\ rel[b] # NoAtt /\ b > low => rel[b] = G.rel[b]
        /\ G.rel[b] # NoAtt /\ rel[b] = NoAtt => \A s \in Sinks : G.marked[<<s, b>>] # 0
        /\ b <= low => \A s \in Sinks : G.marked[<<s, b>>] # 0

\* A superseded process sends at most the chunk it held, per task; with groups, at most the rest of its group, which the
\* target drops or which is the same.  What it wrote is ignored or loses: a release names no
\* attempt below the one whose query completed the batch, but for one that the releasing run staged itself.
I7_SupersededIsHarmless == "I7" \notin G.bad

\* A different history under a known batch id is never delivered silently and never dropped silently: where the
\* committer in office believes that a batch was delivered, it was delivered as the checkpoint has it, or somebody said so.
I8_NoSilentDivergence ==
    /\ "I8" \notin G.bad
    /\ \A r \in Runs : \A s \in Serves[r] :
        C[r][s].pc = "idle" /\ ~C[r][s].rec /\ ~Superseded(s, C[r][s].term) /\ ck.q = wal =>
            \A b \in Batches : b <= C[r][s].marked /\ b < ck.done /\ G.marked[<<s, b>>] # ck.off[b + 1] => Loud(b)

\* At-most-once delivery: nothing twice; what is missing lies among the dead letters, one chunk per segment and event.
AtMostOnceKept ==
    /\ "AtMostOnce" \notin G.bad
    /\ \A s \in Sinks : AtMostOnce(s) => \A b \in Batches : G.marked[<<s, b>>] # 0 =>
        \A g \in Segs(b) :
            LET missing == {k \in 1..Size(b, g) : G.cnt[<<s, b, g, k>>] = 0}
            IN Cardinality(missing) <= Events(s) /\ \A k \in missing : <<s, b, g, k>> \in G.dead

\* Refusals are true: a run stops with an error about history only where two histories met or a checkpoint went back.
NoFalseAlarm == "NoFalseAlarm" \notin G.bad

\* Liveness: with a committer that runs, every completed batch gets its marker from every sink, unless another process
\* took that committer's office (and then stands still).
EveryCompletedBatchIsMarked ==
    \A b \in Batches : \A s \in Sinks :
        (ck.done > b) ~> (G.marked[<<s, b>>] # 0 \/ Superseded(s, C[NRuns][s].term))
=============================================================================
