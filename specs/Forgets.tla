------------------------------ MODULE Forgets ------------------------------
(***************************************************************************)
(* A transactional target that loses its newest acknowledged commits: a    *)
(* fail-over to a standby that lags, a restart without the newest writes.  *)
(* Rows and positions of a commit are lost together.  Committers deliver   *)
(* batch after batch; a process stops for ever by taking no more steps, or *)
(* goes on after others took over.  Gates, releases and collection are     *)
(* taken as WalSink.tla has them.                                          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
    NRuns,       \* Lives of processes that deliver; they open one after the other.
    Zombies,     \* Whether a process may go on once the next one opened.
    Shape,       \* A batch each: <<chunks of segment 1, chunks of segment 2, ...>>
    Delivered,   \* How many of them are delivered and marked before anything happens.
    Bad,         \* Chunks <<batch, segment, number>> with a second row, which the target refuses.
    Fickle,      \* Whether it may take such a row another time.
    PerSlot,     \* Whether the newest commits of one slot are lost; otherwise everything after one moment.
    MaxForgets,  \* How often the target forgets.
    MaxFails,    \* Sends without an answer: with effect, without one, or with one that comes later.
    BUG

Max(set) == CHOOSE x \in set : \A y \in set : y <= x
Runs == 1 .. NRuns
NB == Len(Shape)
Batches == 0 .. (NB - 1)
MaxSegs == Max({Len(Shape[i]) : i \in 1 .. NB})
Slots == 1 .. MaxSegs
Segs(b) == 1 .. Len(Shape[b + 1])
Size(b, g) == Shape[b + 1][g]
Cells == {<<b, g, k>> \in Batches \X Slots \X (1 .. 4) : g \in Segs(b) /\ k <= Size(b, g)}

VARIABLES
    log,      \* The target's commits in their order: slot, batch, chunk, term, and whether the bad row is among the rows.
    flying,   \* Sends that were given up and may still arrive.
    letters,  \* By bad chunk: its refusals by number, each with the bad row or empty, and with a term.
    rel,      \* By batch: the run that released it; 0: nobody yet.
    marked,   \* The newest batch with a marker.
    term,     \* The highest claimed.
    C,        \* Committers by run
    T,        \* and their delivery tasks by slot.
    forgets, fails,
    G         \* Ghosts: what only the laws need.

vars == <<log, flying, letters, rel, marked, term, C, T, forgets, fails, G>>
target == <<log, flying>>
wal == <<letters, rel, marked, term>>
budgets == <<forgets, fails>>

Nothing == <<-1, 0>>
NoTask == [pc |-> "none", k |-> 0, f |-> Nothing, x |-> FALSE, n |-> 0, first |-> FALSE]
NoTasks == [g \in Slots |-> NoTask]
NoRows == [g \in Slots |-> 0]

CommitsOf(b) ==
    LET segs == Len(Shape[b + 1])
        all[i \in 0 .. segs] == IF i = 0 THEN <<>>
            ELSE all[i - 1] \o [k \in 1 .. Size(b, i) |-> [g |-> i, b |-> b, k |-> k, t |-> 0, x |-> FALSE]]
    IN all[segs]

Init ==
    /\ log = LET before[i \in 0 .. Delivered] == IF i = 0 THEN <<>> ELSE before[i - 1] \o CommitsOf(i - 1)
             IN before[Delivered]
    /\ flying = {}
    /\ letters = [c \in Bad |-> <<>>]
    /\ rel = [b \in Batches |-> 0]
    /\ marked = Delivered - 1
    /\ term = 0
    /\ C = [r \in Runs |-> [pc |-> "off", b |-> -1, marked |-> -1, rows |-> NoRows, far |-> NoRows, over |-> FALSE, again |-> FALSE]]
    /\ T = [r \in Runs |-> NoTasks]
    /\ forgets = 0 /\ fails = 0
    /\ G = [sure |-> {},      \* runs that compared the target with the newest marker, and nothing is lost since
            asked |-> {},     \* runs that asked for every slot of their batch, since when nothing was lost
            lost |-> FALSE,   \* whether rows of a marked batch were ever missing
            bad |-> {}]

-----------------------------------------------------------------------------
(* The contents of the target *)

\* The entry of a slot: that of its newest commit.
Entry(g) ==
    LET mine == {i \in 1 .. Len(log) : log[i].g = g}
    IN IF mine = {} THEN [b |-> -1, k |-> 0, t |-> 0] ELSE log[Max(mine)]
Position(g) == <<Entry(g).b, Entry(g).k>>
Before(p, q) == p[1] < q[1] \/ (p[1] = q[1] /\ p[2] < q[2])

\* A marker's last-delivered rows of every slot that was ever used: the target must have them.
LastDelivered(b) ==
    [g \in Slots |->
        LET had == {x \in 0 .. b : g \in Segs(x)}
            newest == Max(had)
        IN IF had = {} \/ (BUG = "last_delivered_of_one_batch" /\ newest # b) THEN Nothing ELSE <<newest, Size(newest, g)>>]
IsBehind(b, g) == b >= 0 /\ Before(Position(g), LastDelivered(b)[g])

Times(commits, c) == Cardinality({i \in 1 .. Len(commits) : <<commits[i].b, commits[i].g, commits[i].k>> = c})
BadTimes(c) ==
    Cardinality({i \in 1 .. Len(log) : <<log[i].b, log[i].g, log[i].k>> = c /\ log[i].x})
    + Cardinality({n \in 1 .. Len(letters[c]) : letters[c][n].x})
IsThere(c) == Times(log, c) = 1 /\ (c \in Bad => BadTimes(c) = 1)
AllThere(b) == \A c \in Cells : c[1] = b => IsThere(c)
AnyMissing(commits, upto) == \E c \in Cells : c[1] <= upto /\ Times(commits, c) = 0

-----------------------------------------------------------------------------
(* The target forgets *)

Lost(rest) ==
    /\ log' = rest
    /\ forgets' = forgets + 1
    /\ G' = [G EXCEPT !.sure = {}, !.asked = {}, !.lost = @ \/ AnyMissing(rest, marked)]

Without(g, many) ==
    LET mine == {i \in 1 .. Len(log) : log[i].g = g}
        gone == {i \in mine : Cardinality({j \in mine : j > i}) < many}
        kept[i \in 0 .. Len(log)] == IF i = 0 THEN <<>> ELSE IF i \in gone THEN kept[i - 1] ELSE Append(kept[i - 1], log[i])
    IN kept[Len(log)]

Forget ==
    /\ forgets < MaxForgets
    /\ \/ ~PerSlot /\ \E n \in 0 .. (Len(log) - 1) : Lost(SubSeq(log, 1, n))
       \/ PerSlot /\ \E g \in Slots : \E many \in 1 .. Cardinality({i \in 1 .. Len(log) : log[i].g = g}) : Lost(Without(g, many))
    /\ UNCHANGED <<flying, wal, C, T, fails>>

(* A send: sinks.ledger.LedgerEntry.  Verdict and rows in one transaction. *)

Verdict(m) ==
    LET e == Entry(m.g) IN
    IF e.t > m.t THEN "fenced"
    ELSE IF e.b > m.b \/ (e.b = m.b /\ e.k >= m.k) THEN "known"
    ELSE IF <<e.b, e.k>> = m.f THEN "new"
    ELSE IF BUG = "gap_accepted" THEN "new"
    ELSE IF BUG = "first_chunk_follows_nothing" /\ m.k = 1 /\ e.b < m.b THEN "new"
    ELSE "forgotten"

Put(m) == log' = Append(log, [g |-> m.g, b |-> m.b, k |-> m.k, t |-> m.t, x |-> m.x])

\* A send that was given up arrives after all, and nobody hears of it.
Arrive ==
    \E m \in flying :
        /\ flying' = flying \ {m}
        /\ IF Verdict(m) = "new" /\ (~m.x \/ Fickle) THEN Put(m) ELSE UNCHANGED log
        /\ UNCHANGED <<wal, C, T, budgets, G>>

-----------------------------------------------------------------------------
(* A committer *)

Superseded(r) == term > r
Left(c, where) == [c EXCEPT !.pc = where, !.b = -1, !.rows = NoRows, !.far = NoRows, !.over = FALSE, !.again = FALSE]
Go(r, where) == C' = [C EXCEPT ![r] = IF where \in {"gone", "alarm", "closed", "idle"} THEN Left(@, where) ELSE [@ EXCEPT !.pc = where]]

\* protocol.run.Run.open: the term, then the newest marker
Open(r) ==
    /\ C[r].pc = "off" /\ term = r - 1
    /\ term' = r
    /\ C' = [x \in Runs |-> IF x = r THEN [C[r] EXCEPT !.pc = "start", !.marked = marked]
                            ELSE IF ~Zombies /\ x < r THEN Left(C[x], "gone") ELSE C[x]]
    /\ T' = [x \in Runs |-> IF ~Zombies /\ x < r THEN NoTasks ELSE T[x]]
    /\ UNCHANGED <<target, letters, rel, marked, budgets, G>>

\* The target is compared with the last-delivered rows of the newest marker, also where there is nothing to deliver: at the
\* start, and before the process ends.
ReadLastDelivered(r) ==
    LET c == C[r]
        skipped == BUG = (IF c.pc = "start" THEN "last_delivered_not_read_at_start" ELSE "last_delivered_not_read_at_end")
    IN
    /\ c.pc \in {"start", "end"}
    /\ IF ~skipped /\ \E g \in Slots : IsBehind(c.marked, g)
       THEN Go(r, "suspect") /\ UNCHANGED G
       ELSE /\ Go(r, IF c.pc = "start" THEN "idle" ELSE "closed")
            /\ G' = [G EXCEPT !.sure = @ \cup {r}]
    /\ UNCHANGED <<target, wal, T, budgets>>

\* Orders for what is open.
Tasks(b, rows) ==
    [g \in Slots |-> IF g \in Segs(b) /\ rows[g] < Size(b, g) THEN [NoTask EXCEPT !.pc = "read", !.k = rows[g]] ELSE NoTask]

\* protocol.committer.Committer.deliver_next: the term, the release, and of another's release the marker
Begin(r) ==
    LET c == C[r]
        b == c.marked + 1
        over == rel[b] \notin {0, r}
        far == [g \in Slots |-> IF g \in 1 .. Len(Shape[b + 1]) THEN Size(b, g) ELSE 0]    \* it may go on until its next look
    IN
    /\ c.pc = "idle" /\ b \in Batches
    /\ G' = IF over /\ marked >= b THEN [G EXCEPT !.sure = @ \ {r}] ELSE G    \* it did not compare the target with that marker
    /\ IF Superseded(r) THEN Go(r, "gone") /\ UNCHANGED <<rel, T>>
       ELSE IF over /\ marked >= b THEN C' = [C EXCEPT ![r].marked = marked] /\ UNCHANGED <<rel, T>>
       ELSE /\ rel' = [rel EXCEPT ![b] = IF @ = 0 THEN r ELSE @]
            /\ C' = [C EXCEPT ![r] = [@ EXCEPT !.pc = "wait", !.b = b, !.rows = NoRows, !.over = over,
                                            !.far = IF over /\ BUG # "older_processes_forgotten" THEN far ELSE NoRows]]
            /\ T' = [T EXCEPT ![r] = Tasks(b, NoRows)]
    /\ UNCHANGED <<target, letters, marked, term, budgets>>

Ends(r) ==
    /\ C[r].pc = "idle" /\ C[r].marked = NB - 1
    /\ Go(r, "end")
    /\ UNCHANGED <<target, wal, T, budgets, G>>

-----------------------------------------------------------------------------
(* One delivery task *)

Task(r, g, t) == T' = [T EXCEPT ![r][g] = t]
Step(r, g, pc) == T' = [T EXCEPT ![r][g].pc = pc]
Quiet == UNCHANGED <<log, flying, wal, C, budgets, G>>
Cell(r, g) == <<C[r].b, g, T[r][g].k + 1>>
IsBad(r, g) == Cell(r, g) \in Bad

\* SegmentDelivery._stored_rows, _check_last_delivered: `last` of the segment's slot, and of its share of the
\* last-delivered slots
TaskRead(r, g) ==
    LET c == C[r]
        segs == Len(Shape[c.b + 1])
        e == Entry(g)
        behind == BUG # "last_delivered_not_read_before_a_batch" /\ \E x \in Slots : x >= g /\ (x - g) % segs = 0 /\ IsBehind(c.marked, x)
        stored == IF e.b = c.b THEN e.k ELSE 0
        from == IF BUG = "memory_outranks_target" THEN Max({stored, T[r][g].k}) ELSE stored
    IN
    /\ T[r][g].pc = "read"
    /\ Task(r, g, IF behind \/ e.b > c.b THEN [NoTask EXCEPT !.pc = "history"]
                  ELSE [NoTask EXCEPT !.k = from, !.f = Position(g), !.first = Bad # {}, !.pc = IF from = Size(c.b, g) THEN "done" ELSE "check"])
    /\ Quiet

\* Whether another attempt may have sent the chunk in hand: the first one of an attempt that is not the first, and all up
\* to `far`, the furthest that this run sent; all of a batch that is taken over.
MaybeSent(r, g) ==
    LET c == C[r]
        t == T[r][g]
    IN (t.first /\ (c.over \/ c.again)) \/ (t.k < c.far[g] /\ BUG # "first_chunk_alone_maybe_sent")
Adopts(r, g) == MaybeSent(r, g) /\ BUG \notin {"dead_letters_not_adopted", "dead_letters_kept_again"}

\* Before a send. A look is good for a while: time is not modelled, so any one may be left out. Where rows are refused, only
\* the first of a fresh batch of one segment may be: a zombie that goes on among refusals has too many states for TLC.
TaskCheck(r, g) ==
    LET t == T[r][g]
        begins == ~IsBad(r, g) \/ ~Adopts(r, g)
    IN
    /\ t.pc \in {"check", "check again"}
    /\ \E skip \in {FALSE, IF Bad = {} THEN t.pc = "check" ELSE Len(Shape[C[r].b + 1]) = 1 /\ ~C[r].over /\ ~C[r].again /\ t.k = 0} :
        IF Superseded(r) /\ ~skip THEN Step(r, g, "fenced")
        ELSE IF t.pc = "check again" THEN Step(r, g, "send")
        ELSE Task(r, g, [t EXCEPT !.x = IsBad(r, g), !.n = 0, !.pc = IF begins THEN "send" ELSE "adopt"])
    /\ Quiet

\* Rejections.take_over: what is kept of the chunk is left out,
TaskAdopt(r, g) ==
    LET t == T[r][g]
        kept == letters[Cell(r, g)]
        isClosed == kept # <<>> /\ ~kept[Len(kept)].x /\ kept[Len(kept)].t = r
    IN
    /\ t.pc = "adopt"
    /\ Task(r, g, [t EXCEPT !.n = Len(kept), !.x = \A n \in 1 .. Len(kept) : ~kept[n].x, !.pc = IF isClosed THEN "send" ELSE "close"])
    /\ Quiet

Keep(r, g, x) == letters' = [letters EXCEPT ![Cell(r, g)] = Append(@, [x |-> x, t |-> r])]
KeepQuiet == UNCHANGED <<log, flying, rel, marked, term, C, budgets, G>>

\* and the next number is taken, so that no older process keeps more.
TaskClose(r, g) ==
    LET t == T[r][g] IN
    /\ t.pc = "close"
    /\ IF Len(letters[Cell(r, g)]) = t.n
       THEN Keep(r, g, FALSE) /\ Task(r, g, [t EXCEPT !.n = @ + 1, !.pc = "send"])
       ELSE Step(r, g, "failed") /\ UNCHANGED letters
    /\ KeepQuiet

\* Rejections.keep, once the target refused the bad row; then the term, then the others are sent.
TaskKeep(r, g) ==
    LET t == T[r][g] IN
    /\ t.pc = "keep"
    /\ IF Len(letters[Cell(r, g)]) = t.n \/ BUG = "dead_letters_kept_again"
       THEN Keep(r, g, TRUE) /\ Task(r, g, [t EXCEPT !.n = @ + 1, !.x = FALSE, !.pc = "check again"])
       ELSE Step(r, g, "failed") /\ UNCHANGED letters
    /\ KeepQuiet

Message(r, g) == [g |-> g, b |-> C[r].b, k |-> T[r][g].k + 1, f |-> T[r][g].f, t |-> r, x |-> T[r][g].x]

TaskSend(r, g) ==
    LET t == T[r][g]
        c == C[r]
        m == Message(r, g)
        said == Verdict(m)
        next == [t EXCEPT !.k = m.k, !.f = <<m.b, m.k>>, !.first = FALSE, !.x = FALSE, !.n = 0,
                          !.pc = IF m.k = Size(m.b, g) THEN "done" ELSE "check"]
    IN
    /\ t.pc = "send"
    /\ C' = [C EXCEPT ![r].far[g] = IF \E x \in Bad : x[1] = c.b /\ x[2] = g THEN Max({@, m.k}) ELSE @]
    /\ \/ /\ \/ said = "fenced" /\ Step(r, g, "fenced") /\ UNCHANGED log
             \/ said = "known" /\ Task(r, g, next) /\ UNCHANGED log
             \/ said = "forgotten" /\ Step(r, g, "forgotten") /\ UNCHANGED log
             \/ said = "new" /\ (~m.x \/ Fickle) /\ Task(r, g, next) /\ Put(m)
             \/ said = "new" /\ m.x /\ Step(r, g, "keep") /\ UNCHANGED log
          /\ UNCHANGED <<fails, flying>>
       \/ /\ fails < MaxFails
          /\ fails' = fails + 1
          /\ Step(r, g, "failed")
          /\ \/ UNCHANGED target
             \/ ~Fickle /\ flying' = flying \cup {m} /\ UNCHANGED log
             \/ said = "new" /\ (~m.x \/ Fickle) /\ Put(m) /\ UNCHANGED flying
    /\ UNCHANGED <<wal, forgets, G>>

-----------------------------------------------------------------------------
(* An attempt ends *)

Ended == {"none", "done", "failed", "forgotten", "fenced", "history"}
Have(r) == [g \in Slots |-> IF T[r][g].pc = "none" THEN C[r].rows[g] ELSE T[r][g].k]

\* BatchDelivery._attempt, _fail
Join(r) ==
    LET c == C[r]
        said == {T[r][g].pc : g \in Slots}
        rows == Have(r)
    IN
    /\ c.pc = "wait" /\ said \subseteq Ended
    /\ IF "fenced" \in said THEN Go(r, "gone")
       ELSE C' = [C EXCEPT ![r].rows = rows, ![r].again = @ \/ "failed" \in said,
                           ![r].pc = IF "history" \in said THEN "suspect"
                                     ELSE IF "forgotten" \in said THEN "ask" ELSE IF "failed" \in said THEN "wait"
                                     ELSE IF BUG = "no_question_before_the_marker" THEN "mark" ELSE "question"]
    /\ T' = [T EXCEPT ![r] = IF C'[r].pc = "wait" THEN Tasks(c.b, rows) ELSE NoTasks]
    /\ G' = IF C'[r].pc = "mark" THEN [G EXCEPT !.asked = @ \cup {r}] ELSE G
    /\ UNCHANGED <<target, wal, budgets>>

\* The target forgot something: every slot of the batch and of last-delivered is read again, and segments that are behind are
\* opened.
AskAgain(r) ==
    LET c == C[r]
        stored == [g \in Slots |-> IF g \in Segs(c.b) /\ Entry(g).b = c.b THEN Entry(g).k ELSE 0]
        isFinished(g) == g \in Segs(c.b) /\ c.rows[g] = Size(c.b, g)
        rows == [g \in Slots |-> IF BUG = "finished_not_asked_again" /\ isFinished(g) THEN c.rows[g]
                                 ELSE IF BUG = "memory_outranks_target" THEN Max({c.rows[g], stored[g]})
                                 ELSE stored[g]]
    IN
    /\ c.pc = "ask"
    /\ IF \E g \in Slots : IsBehind(c.marked, g) \/ (g \in Segs(c.b) /\ Entry(g).b > c.b)
       THEN Go(r, "suspect") /\ UNCHANGED T
       ELSE /\ C' = [C EXCEPT ![r].rows = rows, ![r].pc = "wait", ![r].again = TRUE]
            /\ T' = [T EXCEPT ![r] = Tasks(c.b, rows)]
    /\ UNCHANGED <<target, wal, budgets, G>>

\* Before every marker: every slot of the batch in one question.
Question(r) ==
    LET c == C[r]
        isBehind == \E g \in Segs(c.b) : Before(Position(g), <<c.b, Size(c.b, g)>>)
    IN
    /\ c.pc = "question"
    /\ Go(r, IF isBehind THEN "ask" ELSE "mark")
    /\ G' = IF isBehind THEN G ELSE [G EXCEPT !.asked = @ \cup {r}]
    /\ UNCHANGED <<target, wal, T, budgets>>

\* protocol.committer.Committer._mark
CreateMarker(r) ==
    LET c == C[r]
        isNew == marked < c.b
        isBad == r \in G.asked /\ ~AllThere(c.b)
    IN
    /\ c.pc = "mark"
    /\ marked' = Max({marked, c.b})
    /\ IF ~isNew /\ Superseded(r) THEN Go(r, "gone")
       ELSE C' = [C EXCEPT ![r] = Left([@ EXCEPT !.marked = c.b], "idle")]
    /\ G' = [G EXCEPT !.asked = @ \ {r}, !.lost = @ \/ AnyMissing(log, marked'), !.bad = IF isBad THEN @ \cup {"marked"} ELSE @]
    /\ UNCHANGED <<target, letters, rel, term, T, budgets>>

\* The work of a newer process looks like damage to a superseded one: protocol.committer.Committer.deliver_with_retries
Suspect(r) ==
    /\ C[r].pc = "suspect"
    /\ Go(r, IF Superseded(r) THEN "gone" ELSE "alarm")
    /\ G' = IF Superseded(r) \/ G.lost THEN G ELSE [G EXCEPT !.bad = @ \cup {"alarm"}]
    /\ UNCHANGED <<target, wal, T, budgets>>

-----------------------------------------------------------------------------

TaskStep(r, g) ==
    TaskRead(r, g) \/ TaskCheck(r, g) \/ TaskAdopt(r, g) \/ TaskClose(r, g) \/ TaskSend(r, g) \/ TaskKeep(r, g)

RunStep(r) ==
    \/ Open(r) \/ ReadLastDelivered(r) \/ Begin(r) \/ Ends(r) \/ Join(r) \/ AskAgain(r) \/ Question(r) \/ CreateMarker(r) \/ Suspect(r)
    \/ \E g \in Slots : TaskStep(r, g)

Next == Forget \/ Arrive \/ \E r \in Runs : RunStep(r)

Spec == Init /\ [][Next]_vars

\* Every run but the last may stop anywhere; the last one goes on.
FairSpec == Spec /\ \A r \in Runs : WF_vars(Open(r)) /\ WF_vars(RunStep(NRuns))

-----------------------------------------------------------------------------
(* Laws *)

\* No row twice, and none both in the target and among the dead letters.
NothingTwice == \A c \in Cells : Times(log, c) <= 1 /\ (c \in Bad => BadTimes(c) <= 1)

\* A marker is created for rows that the target has, or that it lost after it was read.
MarkedIsThere == "marked" \notin G.bad

\* A process that found the last-delivered rows in the target, at its start or at its end, has every row of every batch up to
\* there in the target or in a dead letter, unless the target lost it after that look.
NothingMissing == \A r \in G.sure : \A b \in Batches : b <= C[r].marked /\ C[r].pc \in {"idle", "closed"} => AllThere(b)

\* Delivery stops only where rows of a marked batch were lost.
NoFalseAlarm == "alarm" \notin G.bad

\* The last process delivers everything or says why it cannot.
Comes == <>(C[NRuns].pc \in {"closed", "alarm"})
=============================================================================
