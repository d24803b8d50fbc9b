package main

import (
	"fmt"
	"slices"
	"sort"
)

// A message that was sent, with its place in the log, if the log has it.
type job struct {
	Message
	put       *WorkOp
	partition int32
	offset    int64
	isThere   bool
}

func (j *job) place() string { return fmt.Sprintf("%s at %d.%d", j.Name, j.partition, j.offset) }

// A delivery is one lease in one answer.
type delivery struct {
	Lease
	op  *WorkOp
	job *job
	// All that its worker said of it.
	said []*WorkOp
	// The decision that is durable, if one was acknowledged.
	kept *WorkOp
	// One leader leads its partition from before its call to the end, and no other node takes itself for the leader.
	isCalm bool
}

func (d *delivery) who() string { return fmt.Sprintf("%s of %s", d.Lease.Lease, d.op.Worker) }

// isSame returns true if both have one name, and nobody can tell them apart.
func (d *delivery) isSame(other *delivery) bool {
	return d.Lease.Lease == other.Lease.Lease && d.op.Worker == other.op.Worker
}

// isSure returns true if no deposed leader gave it out: the cluster kept a decision on it, or all was calm.
func (d *delivery) isSure() bool { return d.kept != nil || d.isCalm }

// mayHave returns true if the worker may have taken one of these decisions before a time.
func (d *delivery) mayHave(before int64, decisions ...Decision) bool {
	return slices.ContainsFunc(d.said, func(op *WorkOp) bool {
		return slices.Contains(decisions, op.Decision) && op.Outcome != Fail && op.Call < before
	})
}

// mayEnd returns true if the worker may have ended it before a time.
func (d *delivery) mayEnd(before int64) bool {
	return d.mayHave(before, Accept, Release, Reject, Unseen)
}

// lockEnd returns a time before which its time is not over, by what was acknowledged before `at`.
func (d *delivery) lockEnd(at int64) int64 {
	from := d.op.Call
	for _, op := range d.said {
		if op.Decision == Renew && op.Outcome == OK && op.Return < at {
			from = max(from, op.Call)
		}
	}
	return from + int64(lockFor)
}

// All that is known of one group.
type workCheck struct {
	wrong *findings
	group WorkGroup
	calm  map[int32]int64
	jobs  map[string]*job
	all   []*delivery // in the order of their answers
	of    map[*job][]*delivery
	// The decision by which the group is done with a message, the first one that was acknowledged.
	done    map[*job]*WorkOp
	letters map[*job][]Letter
	// Leases of messages that were done, by nodes that led no longer. If it is strict, there may be none.
	repeated int
	isStrict bool
}

// CheckWork returns what is wrong with a history of work queues, as sentences, and how many leases of messages that were
// done it let pass: those of nodes that led no longer, unless it is strict. An operation without an answer may have
// happened once, at any time after its call, or never.
func CheckWork(ops []WorkOp, ends WorkEnds, isStrict bool) (sentences []string, repeated int) {
	var wrong findings
	for _, op := range ops {
		if op.Unexpected {
			wrong.add("problem", "%s was told, at a %s: %s", op.Client, op.Kind, op.Error)
		}
	}
	jobs := jobsOf(&wrong, ops, ends)
	for _, group := range workGroups {
		w := &workCheck{wrong: &wrong, group: group, isStrict: isStrict, calm: ends.Calm, jobs: jobs,
			of: make(map[*job][]*delivery), done: make(map[*job]*WorkOp), letters: make(map[*job][]Letter)}
		w.learn(ops)
		w.checkLetters(ends.Letters)
		w.checkTimes()
		w.checkDone()
		w.checkHolders()
		w.checkCounts()
		w.checkLocks()
		if group.IsOrdered {
			w.checkOrder()
		}
		w.checkEnd()
		repeated += w.repeated
	}
	return wrong.sentences(), repeated
}

// jobsOf returns the messages by their names, and compares the log with what producers were told.
func jobsOf(wrong *findings, ops []WorkOp, ends WorkEnds) map[string]*job {
	jobs := make(map[string]*job)
	for i := range ops {
		for _, message := range ops[i].Messages {
			jobs[message.Name] = &job{Message: message, put: &ops[i]}
		}
	}
	for _, record := range ends.Records {
		it := jobs[record.Name]
		where := fmt.Sprintf("%d.%d", record.Partition, record.Offset)
		switch {
		case it == nil:
			wrong.add("stranger", "the log of work has %s at %s, which nobody sent", record.Name, where)
			continue
		case it.isThere:
			wrong.add("doubled", "the log of work has %s, and again at %s", it.place(), where)
			continue
		case it.put.Outcome == Fail:
			wrong.add("refused", "the log of work has %s at %s, though its producer was told %s", it.Name, where, it.put.Error)
		case it.put.Queue != record.Queue:
			wrong.add("queue", "the log of work has %s at %s in %s, and not in %s", it.Name, where, record.Queue, it.put.Queue)
		}
		it.partition, it.offset, it.isThere = record.Partition, record.Offset, true
	}
	for i := range ops {
		op := &ops[i]
		for number, message := range op.Messages {
			it := jobs[message.Name]
			switch {
			case op.Outcome != OK:
			case !it.isThere:
				wrong.add("gone", "%s was acknowledged at %s, and the log does not have it", it.Name, op.At)
			case it.offset != op.At.Offset+int64(number):
				wrong.add("moved", "%s, and was acknowledged as one of those from %s on", it.place(), op.At)
			}
		}
	}
	return jobs
}

// learn finds out of which message each lease is, and what became of it.
func (w *workCheck) learn(ops []WorkOp) {
	byName := make(map[[2]string][]*delivery)
	for i := range ops {
		op := &ops[i]
		if op.Kind != Take || op.Group != w.group.Name || op.Outcome != OK {
			continue
		}
		if len(op.Leases) > op.Limit {
			w.add("limit", "%s wanted %d leases and got %d", op.Client, op.Limit, len(op.Leases))
		}
		for _, lease := range op.Leases {
			it := w.jobs[lease.Name]
			if it == nil || !it.isThere {
				w.add("phantom", "%s got %s, %s, of node %d, which the log does not have", op.Client, lease.Name,
					lease.Lease, op.Node)
				continue
			}
			d := &delivery{Lease: lease, op: op, job: it, isCalm: op.Call > w.calm[it.partition]}
			w.all = append(w.all, d)
		}
	}
	sort.SliceStable(w.all, func(i, j int) bool { return w.all[i].op.Return < w.all[j].op.Return })
	for _, d := range w.all {
		w.of[d.job] = append(w.of[d.job], d)
		name := [2]string{d.op.Worker, d.Lease.Lease}
		byName[name] = append(byName[name], d)
	}
	for i := range ops {
		op := &ops[i]
		if op.Kind != Settle || op.Group != w.group.Name {
			continue
		}
		// If two have the name, the leader takes the decision for one on the later.
		var its *delivery
		for _, d := range byName[[2]string{op.Worker, op.Lease}] {
			if d.op.Return <= op.Call {
				its = d
			}
		}
		if its == nil {
			continue // of a lease that is told already
		}
		its.said = append(its.said, op)
		if op.Outcome == OK {
			w.keep(its, op)
		}
	}
}

// keep notes a decision that was acknowledged. A renewal and an `unseen` are of the leader's memory alone.
func (w *workCheck) keep(d *delivery, op *WorkOp) {
	if op.Decision == Renew || op.Decision == Unseen {
		return
	}
	if d.kept != nil {
		w.add("twice", "%s of %s was settled twice: %s, and %s", d.who(), d.job.place(), d.kept.Decision, op.Decision)
		return
	}
	d.kept = op
	isDone := op.Decision == Accept || op.Decision == Reject || d.Deliveries >= deliveriesMax
	if first := w.done[d.job]; isDone && (first == nil || op.Return < first.Return) {
		w.done[d.job] = op
	}
}

func (w *workCheck) add(kind, format string, arguments ...any) {
	w.wrong.add(kind+" "+w.group.Name, w.group.Name+": "+format, arguments...)
}

// checkTimes compares each lease with the message as it was sent, and its times with the clock.
func (w *workCheck) checkTimes() {
	for i, d := range w.all {
		it, put := d.job, d.job.put
		partition, offset, deliveries, err := parsed(d.Lease.Lease)
		if err != nil || partition != it.partition || offset != it.offset || deliveries != d.Deliveries ||
			d.Partition != it.partition || d.Position.Offset != it.offset || d.Queue != put.Queue {
			w.add("place", "%s of %s names it %s %s, with %d deliveries", d.who(), it.place(), d.Queue, d.Position, d.Deliveries)
		}
		if d.op.Return < put.Call {
			w.add("early", "%s got %s before it was sent", d.who(), it.place())
		}
		if d.Priority != it.Priority || !isTime(d.DeliverAtMs, it.DelayMs, it.DeliverAtMs, put) || !isTime(d.ExpiresMs, it.TTLMs, 0, put) {
			w.add("schedule", "%s of %s has time %d, end %d and priority %d, and %+v was sent", d.who(), it.place(),
				d.DeliverAtMs, d.ExpiresMs, d.Priority, it.Message)
		}
		if d.op.ReturnMs < d.DeliverAtMs {
			w.add("before", "%s got %s of node %d %d ms before its time", d.who(), it.place(), d.op.Node, d.DeliverAtMs-d.op.ReturnMs)
		}
		if d.ExpiresMs > 0 && d.op.CallMs > d.ExpiresMs {
			w.add("expired", "%s got %s of node %d, and had asked %d ms after its end", d.who(), it.place(), d.op.Node,
				d.op.CallMs-d.ExpiresMs)
		}
		// Else two nodes, one of which was deposed, may both have had a part in the answer.
		if !d.isCalm && !w.isStrict {
			continue
		}
		for j := i - 1; j >= 0 && w.all[j].op == d.op; j-- {
			if w.all[j].job == it {
				w.add("again", "%s got %s twice in one answer", d.op.Client, it.place())
			}
		}
		if i > 0 && w.all[i-1].op == d.op && w.all[i-1].Partition == d.Partition && w.all[i-1].Priority < d.Priority {
			w.add("priority", "%s got %s of priority %d behind one of priority %d", d.op.Client, it.place(), d.Priority,
				w.all[i-1].Priority)
		}
	}
}

// isTime returns true if a time is the one that was wanted: none, a fixed one, or some time after the call of its producer.
func isTime(ms, afterMs, fixedMs int64, put *WorkOp) bool {
	if afterMs == 0 {
		return ms == fixedMs
	}
	return ms >= put.CallMs+afterMs && (put.Outcome != OK || ms <= put.ReturnMs+afterMs)
}

// checkDone demands that nobody gets a message that the group is done with, and nobody settles it once more.
func (w *workCheck) checkDone() {
	for it, done := range w.done {
		for _, d := range w.of[it] {
			switch {
			case d.kept == done:
			case d.kept != nil && (d.kept.Decision != Release || d.Deliveries >= deliveriesMax || d.kept.Call > done.Return):
				w.add("done", "%s of %s was settled (%s), and %s of %s, too (%s)", done.Lease, it.place(), done.Decision,
					d.Lease.Lease, d.op.Worker, d.kept.Decision)
			case d.op.Call > done.Return && !d.isSure() && !w.isStrict:
				w.repeated++
			case d.op.Call > done.Return:
				w.add("done", "%s got %s of node %d, and had asked %.3f s after %s of %s was settled (%s)", d.who(), it.place(),
					d.op.Node, float64(d.op.Call-done.Return)/1e9, done.Lease, done.Worker, done.Decision)
			}
		}
	}
}

// checkHolders demands that of two leases of one message, or in an ordered group of one queue, the earlier one was
// settled before the later one was given out.
func (w *workCheck) checkHolders() {
	shared := make(map[string][]*delivery)
	for _, d := range w.all {
		key := d.job.Name
		if w.group.IsOrdered {
			key = d.job.put.Queue
		}
		shared[key] = append(shared[key], d)
	}
	for _, all := range shared {
		for i, d := range all {
			for _, later := range all[i+1:] {
				if d.isSame(later) {
					continue
				}
				isOrderless := d.kept != nil && later.kept != nil &&
					d.kept.Call > later.op.Return && later.kept.Call > d.op.Return
				if isOrderless {
					w.add("both", "%s of %s and %s of %s were held at once: each was settled after the other was given out",
						d.who(), d.job.place(), later.who(), later.job.place())
				} else if op := d.settledAfter(later); op != nil {
					w.add("former", "%s of %s was settled (%s) %.3f s after the answer with %s of %s", d.who(), d.job.place(),
						op.Decision, float64(op.Call-later.op.Return)/1e9, later.who(), later.job.place())
				}
			}
		}
	}
}

// settledAfter returns a decision that was acknowledged, though a later lease was known before its call.
func (d *delivery) settledAfter(later *delivery) *WorkOp {
	if !later.isCalm || later.op.Call < d.op.Return {
		return nil
	}
	for _, op := range d.said {
		if op.Outcome == OK && op.Call > later.op.Return {
			return op
		}
	}
	return nil
}

// checkCounts demands that deliveries count: each that was released for certain, and while one node leads each.
func (w *workCheck) checkCounts() {
	for _, all := range w.of {
		for i, d := range all {
			if d.Deliveries < 1 || d.Deliveries > deliveriesMax {
				w.add("limit", "%s of %s is delivery %d, of at most %d", d.who(), d.job.place(), d.Deliveries, deliveriesMax)
			}
			for _, later := range all[i+1:] {
				if later.op.Call < d.op.Return || d.isSame(later) && !later.isCalm {
					continue
				}
				isReleased := d.kept != nil && d.kept.Decision == Release && later.isSure() && later.op.Call > d.kept.Return
				least := d.Deliveries + 1
				if d.mayHave(later.op.Return, Unseen) {
					least--
				}
				if (isReleased || d.isCalm && later.isCalm) && later.Deliveries < least {
					w.add("count", "%s of %s came after %s, and counts %d deliveries", later.who(), d.job.place(), d.who(),
						later.Deliveries)
				}
			}
		}
	}
}

// checkLocks demands, while one node leads, that a lease lasts for its time, that a released message waits for its time,
// and that a lease is lost for a cause.
func (w *workCheck) checkLocks() {
	for _, all := range w.of {
		for i, d := range all {
			if !d.isCalm {
				continue
			}
			for _, later := range all[i+1:] {
				if later.op.Call < d.op.Return {
					continue
				}
				if left := d.lockEnd(later.op.Call) - later.op.Return; left > 0 && !d.mayEnd(later.op.Return) {
					w.add("lock", "%s of %s was given out %.3f s before the time of %s was over", later.who(), d.job.place(),
						float64(left)/1e9, d.who())
				}
				if op := d.kept; op != nil && op.DelayMs > 0 && later.op.Call > op.Return && later.op.ReturnMs < op.CallMs+op.DelayMs {
					w.add("lock", "%s of %s was given out %d ms before it may come again, which %s released", later.who(),
						d.job.place(), op.CallMs+op.DelayMs-later.op.ReturnMs, d.who())
				}
			}
			for _, op := range d.said {
				isEnded := slices.ContainsFunc(d.said, func(other *WorkOp) bool {
					return other != op && other.Decision != Renew && other.Outcome != Fail && other.Call < op.Return
				})
				if op.Error == "lease-lost" && op.Outcome == Fail && op.Return < d.lockEnd(op.Call) && !isEnded {
					w.add("lost lease", "%s of %s was told lease-lost (%s), for no cause", d.who(), d.job.place(), op.Decision)
				}
			}
		}
	}
}

// checkOrder demands that nobody gets a message of a queue before the group may be done with those before it, and that
// none of these comes afterwards. Messages that had a time of delivery have another order.
func (w *workCheck) checkOrder() {
	mayBeDone := func(it *job, before int64) bool {
		isDone := func(d *delivery) bool { return d.mayHave(before, Accept, Reject) }
		return len(w.letters[it]) > 0 || slices.ContainsFunc(w.of[it], isDone)
	}
	queues := make(map[string][]*job)
	for _, it := range w.jobs {
		if it.isThere && it.DelayMs == 0 && it.DeliverAtMs == 0 {
			queues[it.put.Queue] = append(queues[it.put.Queue], it)
		}
	}
	for _, its := range queues {
		sort.Slice(its, func(i, j int) bool { return its[i].offset < its[j].offset })
		for i, it := range its {
			for _, d := range w.of[it] {
				if !d.isSure() {
					continue
				}
				for _, before := range its[:i] {
					if !mayBeDone(before, d.op.Return) {
						w.add("order", "%s of %s was given out before the group was done with %s", d.who(), it.place(), before.place())
					}
					for _, other := range w.of[before] {
						if other.isSure() && other.op.Call > d.op.Return {
							w.add("order", "%s of %s was given out behind %s of %s", other.who(), before.place(), d.who(), it.place())
						}
					}
				}
			}
		}
	}
}

// checkLetters demands of each dead letter that it is of a message, and has a cause.
func (w *workCheck) checkLetters(letters []Letter) {
	for _, letter := range letters {
		if letter.Group != w.group.Name {
			continue
		}
		it := w.jobs[letter.Name]
		if it == nil || !it.isThere || it.partition != letter.Partition || it.offset != letter.Offset {
			w.add("letter", "a dead letter has %s of %d.%d, which nobody sent there", letter.Name, letter.Partition, letter.Offset)
			continue
		}
		w.letters[it] = append(w.letters[it], letter)
		isRejected := func(d *delivery) bool { return d.mayHave(never, Reject) }
		switch letter.Reason {
		case "it was rejected by a consumer":
			if slices.ContainsFunc(w.of[it], isRejected) {
				continue
			}
		case "it was given out as often as it may be":
			if letter.Deliveries == deliveriesMax {
				continue
			}
		case "it has expired":
			if it.TTLMs > 0 {
				continue
			}
		}
		w.add("letter", "%s is a dead letter for no cause: %q, after %d deliveries", it.place(), letter.Reason, letter.Deliveries)
	}
}

// checkEnd demands of each message of the log that somebody may have accepted it, or that it is a dead letter.
func (w *workCheck) checkEnd() {
	for _, it := range w.jobs {
		isAccepted := func(d *delivery) bool { return d.mayHave(never, Accept) }
		done := w.done[it]
		switch {
		case !it.isThere || len(w.letters[it]) > 0:
		case done != nil && done.Decision != Accept:
			w.add("unburied", "%s was given up with a %s of %s, and is no dead letter", it.place(), done.Decision, done.Lease)
		case !slices.ContainsFunc(w.of[it], isAccepted):
			w.add("lost", "%s of %s is lost: after %d leases nobody accepted it, and it is no dead letter", it.place(),
				it.put.Queue, len(w.of[it]))
		}
	}
}

// summaryOfWork says how much was done, and returns how many messages were accepted.
func summaryOfWork(ops []WorkOp, ends WorkEnds, repeated int) (accepted int) {
	count := make(map[string]map[Outcome]int)
	errs := make(map[string]int)
	leases, calm, most := 0, 0, make(map[string]int)
	for _, op := range ops {
		name := string(op.Kind)
		if op.Kind == Settle {
			name = string(op.Decision)
		}
		if count[name] == nil {
			count[name] = make(map[Outcome]int)
		}
		count[name][op.Outcome]++
		for _, it := range op.Leases {
			leases++
			most[it.Lease+op.Worker+op.Group]++
			if op.Call > ends.Calm[it.Partition] {
				calm++
			}
		}
		if op.Error != "" {
			errs[fmt.Sprintf("%s (%s): %s", name, op.Outcome, addresses.ReplaceAllString(op.Error, "…"))]++
		}
	}
	fmt.Printf("%d operations on work queues, acknowledged, unknown and refused:", len(ops))
	for _, name := range []string{"put", "take", "accept", "release", "reject", "renew", "unseen"} {
		fmt.Printf(" %s %d, %d, %d;", name, count[name][OK], count[name][Unknown], count[name][Fail])
	}
	fmt.Printf("\n  %d messages, %d dead letters; %d leases, of which %d are under one leader to the end, %d have the name of an "+
		"earlier one, and %d are of messages that were done\n", len(ends.Records), len(ends.Letters), leases, calm, leases-len(most), repeated)
	for message, times := range errs {
		fmt.Printf("  %d times: %s\n", times, message)
	}
	return count["accept"][OK]
}
