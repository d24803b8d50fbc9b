package main

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
)

// Milliseconds since 1970 at which the sound history begins.
const beginMs = 1_000_000

// A history of the work queues as it is made; times are in milliseconds.
type workHistory struct {
	ops  []WorkOp
	ends WorkEnds
	jobs map[string]*job
}

func (h *workHistory) add(op WorkOp, call, result int64, outcome Outcome) *WorkOp {
	op.Call, op.Return, op.CallMs, op.ReturnMs = call*1e6, result*1e6, beginMs+call, beginMs+result
	op.Outcome, op.Attempts, op.Node = outcome, 1, 1
	switch outcome {
	case Fail:
		op.Error = "lease-lost"
	case Unknown:
		op.Error = "outcome-unknown"
	}
	h.ops = append(h.ops, op)
	return &h.ops[len(h.ops)-1]
}

// put appends messages behind the others of partition 0. If the log is not to have them, `outcome` says so.
func (h *workHistory) put(call int64, outcome Outcome, isThere bool, messages ...Message) {
	op := h.add(WorkOp{Client: "p", Kind: Put, Queue: "q", Messages: messages}, call, call+10, outcome)
	for i, message := range messages {
		if isThere {
			offset := int64(len(h.ends.Records))
			if i == 0 && outcome == OK {
				op.At = position(offset)
			}
			h.ends.Records = append(h.ends.Records, Record{"q", 0, offset, message.Name})
			h.jobs[message.Name] = &job{Message: message, offset: offset}
		}
	}
}

// lease returns a lease of a message in its first delivery, or in another one, as `m2/3`.
func (h *workHistory) lease(name string) Lease {
	deliveries := 1
	if _, err := fmt.Sscanf(name[strings.Index(name+"/", "/"):], "/%d", &deliveries); err == nil {
		name = name[:strings.Index(name, "/")]
	}
	it := h.jobs[name]
	lease := Lease{Lease: fmt.Sprintf("0.%d.%d", it.offset, deliveries), Queue: "q", Name: name, Position: *position(it.offset),
		Deliveries: deliveries, DeliverAtMs: it.DeliverAtMs, Priority: it.Priority}
	if it.DelayMs > 0 {
		lease.DeliverAtMs = beginMs + 5 + it.DelayMs
	}
	if it.TTLMs > 0 {
		lease.ExpiresMs = beginMs + 5 + it.TTLMs
	}
	return lease
}

func (h *workHistory) take(group, worker string, call int64, names ...string) {
	op := WorkOp{Client: worker, Kind: Take, Group: "chaos-" + group, Worker: worker, Limit: 3}
	for _, name := range names {
		op.Leases = append(op.Leases, h.lease(name))
	}
	h.add(op, call, call+10, OK)
}

func (h *workHistory) settle(group, worker string, call int64, decision Decision, outcome Outcome, name string) *WorkOp {
	return h.add(WorkOp{Client: worker, Kind: Settle, Group: "chaos-" + group, Worker: worker, Lease: h.lease(name).Lease,
		Decision: decision}, call, call+10, outcome)
}

// A sound history of one queue and both groups. Of some decisions nobody got the answer, and the log and later leases show
// what came of them. From second 20 on one leader leads.
func soundWork() ([]WorkOp, WorkEnds) {
	h := &workHistory{jobs: make(map[string]*job)}
	plain := func(name string) Message { return Message{Name: name, Priority: plainPriority} }
	h.put(0, OK, true, plain("m1"), plain("m2"))
	h.put(0, OK, true, Message{Name: "delayed", DelayMs: 1000, Priority: plainPriority})
	h.put(0, OK, true, Message{Name: "fixed", DeliverAtMs: beginMs + 700, Priority: 7})
	h.put(0, OK, true, Message{Name: "short", TTLMs: 3000, Priority: plainPriority})
	h.put(20, OK, true, plain("bad"), plain("tired"), plain("spare"))
	h.put(40, Unknown, true, plain("untold"))
	h.put(40, Unknown, false, plain("never"))
	h.put(60, Fail, false, plain("refused"))
	h.put(20_100, OK, true, plain("calm1"), plain("calm2"), plain("calm3"))
	h.take("workers", "a", 100, "m1", "m2")
	h.settle("workers", "a", 120, Accept, OK, "m1")
	h.settle("workers", "a", 120, Release, OK, "m2")
	h.take("workers", "b", 150, "m2/2")
	h.settle("workers", "b", 170, Accept, Unknown, "m2/2")
	// A leader that was deposed does not know of the release, and nothing is kept of what its worker says.
	h.take("workers", "deposed", 155, "m2")
	h.settle("workers", "deposed", 175, Accept, Unknown, "m2")
	h.take("workers", "a", 200, "short", "bad", "spare")
	h.settle("workers", "a", 220, Reject, OK, "bad")
	h.settle("workers", "a", 230, Unseen, OK, "spare")
	// Its time is over. A new leader does not know of that delivery.
	h.take("workers", "b", 2400, "short")
	h.settle("workers", "a", 2500, Accept, Fail, "short")
	h.take("workers", "b", 2600, "fixed", "delayed", "spare")
	h.settle("workers", "b", 2700, Accept, OK, "fixed")
	h.settle("workers", "b", 2700, Accept, OK, "delayed")
	h.settle("workers", "b", 2700, Accept, OK, "spare")
	for i := range int64(4) {
		h.take("workers", "a", 4000+100*i, fmt.Sprintf("tired/%d", i+1))
		h.settle("workers", "a", 4050+100*i, Release, OK, fmt.Sprintf("tired/%d", i+1))
	}
	h.take("workers", "b", 4500, "tired/5")
	h.take("workers", "b", 4600, "untold")
	h.settle("workers", "b", 4700, Accept, OK, "untold")
	h.take("workers", "a", 21_000, "calm1", "calm2", "calm3")
	h.settle("workers", "a", 21_100, Release, OK, "calm2").DelayMs = 1000
	h.settle("workers", "a", 22_000, Renew, OK, "calm3")
	h.take("workers", "b", 22_200, "calm2/2")
	h.settle("workers", "b", 22_300, Accept, OK, "calm2/2")
	h.take("workers", "b", 23_100, "calm1/2")
	h.settle("workers", "a", 23_300, Accept, Fail, "calm1")
	h.settle("workers", "a", 23_500, Accept, OK, "calm3")
	h.settle("workers", "b", 23_600, Accept, OK, "calm1/2")
	for i, name := range []string{"m1", "m2", "short", "bad", "tired", "spare", "untold"} {
		h.take("ordered", "o", 100+100*int64(i), name)
		h.settle("ordered", "o", 120+100*int64(i), Accept, OK, name)
	}
	h.take("ordered", "o", 1100, "fixed")
	h.settle("ordered", "o", 1120, Accept, OK, "fixed")
	h.take("ordered", "o", 1140, "delayed")
	h.settle("ordered", "o", 1160, Accept, OK, "delayed")
	for i, name := range []string{"calm1", "calm2", "calm3"} {
		h.take("ordered", "o", 20_200+100*int64(i), name)
		h.settle("ordered", "o", 20_220+100*int64(i), Accept, OK, name)
	}
	bury := func(name string, deliveries int, reason string) {
		h.ends.Letters = append(h.ends.Letters, Letter{"chaos-workers", name, 0, h.jobs[name].offset, deliveries, reason})
	}
	bury("bad", 1, "it was rejected by a consumer")
	bury("tired", 5, "it was given out as often as it may be")
	bury("short", 2, "it has expired")
	h.ends.Calm = map[int32]int64{0: 20_000 * 1e6}
	rand.New(rand.NewSource(1)).Shuffle(len(h.ops), func(i, j int) { h.ops[i], h.ops[j] = h.ops[j], h.ops[i] })
	return h.ops, h.ends
}

func TestASoundHistoryOfWorkIsAccepted(t *testing.T) {
	ops, ends := soundWork()
	if wrong, repeated := CheckWork(ops, ends, true); len(wrong) > 0 || repeated > 0 {
		t.Fatal(strings.Join(wrong, "\n"))
	}
}

func TestALeaseOfADoneMessagePassesOnlyIfItsLeaderMayBeDeposed(t *testing.T) {
	for _, it := range []struct {
		call     int64
		isStrict bool
		passes   bool
	}{{1000, false, true}, {1000, true, false}, {20_500, false, false}} {
		ops, ends := soundWork()
		h := &workHistory{ops: ops, jobs: map[string]*job{"m1": {Message: Message{Name: "m1", Priority: plainPriority}}}}
		h.take("workers", "deposed", it.call, "m1")
		wrong, repeated := CheckWork(h.ops, ends, it.isStrict)
		if (len(wrong) == 0) != it.passes || (repeated == 1) != it.passes {
			t.Fatalf("%+v: %d repeated, %v", it, repeated, wrong)
		}
	}
}

// Each harm is found by the check that is there for it; the words of its sentence are compared.
func TestHarmedHistoriesOfWorkAreRefused(t *testing.T) {
	find := func(ops []WorkOp, is func(WorkOp) bool) *WorkOp {
		i := slices.IndexFunc(ops, is)
		if i < 0 {
			panic("the sound history has no such operation")
		}
		return &ops[i]
	}
	has := func(op WorkOp, name string) bool {
		return slices.ContainsFunc(op.Leases, func(it Lease) bool { return it.Name == name })
	}
	put := func(ops []WorkOp, name string) *WorkOp {
		return find(ops, func(op WorkOp) bool {
			return slices.ContainsFunc(op.Messages, func(it Message) bool { return it.Name == name })
		})
	}
	taken := func(ops []WorkOp, worker, name string) *WorkOp {
		return find(ops, func(op WorkOp) bool { return op.Worker == worker && has(op, name) })
	}
	leaseOf := func(ops []WorkOp, worker, name string) *Lease {
		op := taken(ops, worker, name)
		return &op.Leases[slices.IndexFunc(op.Leases, func(it Lease) bool { return it.Name == name })]
	}
	settled := func(ops []WorkOp, worker, lease string, decision Decision) *WorkOp {
		return find(ops, func(op WorkOp) bool { return op.Worker == worker && op.Lease == lease && op.Decision == decision })
	}
	at := func(op *WorkOp, call int64) {
		op.Call, op.Return, op.CallMs, op.ReturnMs = call*1e6, (call+10)*1e6, beginMs+call, beginMs+call+10
	}
	// another takes a message that was taken before.
	another := func(ops *[]WorkOp, of WorkOp, name, worker string, deliveries int, call int64) {
		its := of.Leases[slices.IndexFunc(of.Leases, func(it Lease) bool { return it.Name == name })]
		its.Deliveries = deliveries
		its.Lease = fmt.Sprintf("0.%d.%d", its.Position.Offset, deliveries)
		op := of
		op.Worker, op.Client, op.Leases = worker, worker, []Lease{its}
		at(&op, call)
		*ops = append(*ops, op)
	}
	says := func(ops *[]WorkOp, of WorkOp, worker, lease string, decision Decision, call int64) {
		op := WorkOp{Client: worker, Worker: worker, Kind: Settle, Group: of.Group, Lease: lease, Decision: decision, Outcome: OK}
		at(&op, call)
		*ops = append(*ops, op)
	}
	harms := map[string]struct {
		says string
		harm func(ops *[]WorkOp, ends *WorkEnds)
	}{
		"an acknowledged message is not in the log": {"calm3 was acknowledged at 1.9.9, and the log does not have it", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Records = ends.Records[:11]
		}},
		"a message is in the log twice": {"has m1 at 0.0, and again at 0.12", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Records = append(ends.Records, Record{"q", 0, 12, "m1"})
		}},
		"a message is in the log that nobody sent": {"has a stranger:1 at 0.12, which nobody sent", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Records = append(ends.Records, Record{"q", 0, 12, "a stranger:1"})
		}},
		"a refused message is in the log": {"though its producer was told lease-lost", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Records = append(ends.Records, Record{"q", 0, 12, "refused"})
		}},
		"a message is in another queue": {"in r, and not in q", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Records[0].Queue = "r"
		}},
		"a message is not where its producer was told": {"delayed at 0.2, and was acknowledged as one of those from 1.5.5 on", func(ops *[]WorkOp, _ *WorkEnds) {
			put(*ops, "delayed").At = position(5)
		}},
		"an acknowledged message is lost": {"m1 at 0.0 of q is lost: after 0 leases", func(ops *[]WorkOp, _ *WorkEnds) {
			taken(*ops, "a", "m1").Leases = taken(*ops, "a", "m1").Leases[1:]
		}},
		"a message without an answer is lost that the log has": {"untold at 0.8 of q is lost", func(ops *[]WorkOp, _ *WorkEnds) {
			settled(*ops, "b", "0.8.1", Accept).Outcome = Fail
		}},
		"a message that was released is lost": {"m2 at 0.1 of q is lost: after 3 leases", func(ops *[]WorkOp, _ *WorkEnds) {
			settled(*ops, "b", "0.1.2", Accept).Outcome = Fail
			settled(*ops, "deposed", "0.1.1", Accept).Outcome = Fail
		}},
		"a rejected message is no dead letter": {"bad at 0.5 was given up with a reject of 0.5.1, and is no dead letter", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters = ends.Letters[1:]
		}},
		"an exhausted message is no dead letter": {"tired at 0.6 was given up with a release of 0.6.5", func(ops *[]WorkOp, ends *WorkEnds) {
			says(ops, *taken(*ops, "b", "tired"), "b", "0.6.5", Release, 4520)
			ends.Letters = slices.Delete(ends.Letters, 1, 2)
		}},
		"an expired message is no dead letter": {"short at 0.4 of q is lost", func(ops *[]WorkOp, ends *WorkEnds) {
			ends.Letters = ends.Letters[:2]
			*ops = slices.DeleteFunc(*ops, func(op WorkOp) bool { return op.Group == "chaos-workers" && op.Lease == "0.4.1" })
		}},
		"a dead letter for no cause": {"m1 at 0.0 is a dead letter for no cause", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters = append(ends.Letters, Letter{"chaos-workers", "m1", 0, 0, 1, "it was rejected by a consumer"})
		}},
		"a dead letter of too few deliveries": {"\"it was given out as often as it may be\", after 4 deliveries", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters[1].Deliveries = 4
		}},
		"a dead letter of a message without an end": {"m1 at 0.0 is a dead letter for no cause: \"it has expired\"", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters = append(ends.Letters, Letter{"chaos-workers", "m1", 0, 0, 1, "it has expired"})
		}},
		"a dead letter that nobody sent": {"a dead letter has a stranger:1 of 0.3, which nobody sent there", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters = append(ends.Letters, Letter{"chaos-workers", "a stranger:1", 0, 3, 1, "it has expired"})
		}},
		"a dead letter of another place": {"a dead letter has bad of 0.9, which nobody sent there", func(_ *[]WorkOp, ends *WorkEnds) {
			ends.Letters[0].Offset = 9
		}},
		"a lease of what nobody sent": {"a got m1 damaged: \"else\", 0.0.1, of node 1, which the log does not have", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "a", "m1").Name = namedBy("m1", "else")
		}},
		"a lease of a message without an answer that the log lacks": {"b got never, 0.8.1, of node 1", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "b", "untold").Name = "never"
		}},
		"a lease before its message": {"o got m1 at 0.0 before it was sent", func(ops *[]WorkOp, _ *WorkEnds) {
			at(put(*ops, "m1"), 500)
		}},
		"a lease of another name": {"0.0.1 of a of m1 at 0.0 names it q 1.0.0, with 2 deliveries", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "a", "m1").Deliveries = 2
		}},
		"a lease of another queue": {"names it r 1.0.0", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "a", "m1").Queue = "r"
		}},
		"more leases than were wanted": {"a wanted 1 leases and got 2", func(ops *[]WorkOp, _ *WorkEnds) {
			taken(*ops, "a", "m1").Limit = 1
		}},
		"a message twice in one answer": {"a got m1 at 0.0 twice in one answer", func(ops *[]WorkOp, _ *WorkEnds) {
			op := taken(*ops, "a", "m1")
			op.Leases = append(op.Leases, op.Leases[0])
		}},
		"a message before its time": {"b got delayed at 0.2 of node 1 ", func(ops *[]WorkOp, _ *WorkEnds) {
			at(taken(*ops, "b", "delayed"), 994)
			at(settled(*ops, "b", "0.2.1", Accept), 1010)
			leaseOf(*ops, "b", "delayed").DeliverAtMs = beginMs + 1009
			taken(*ops, "b", "delayed").ReturnMs = beginMs + 1008
		}},
		"another time than was wanted": {"has time 1000700", func(ops *[]WorkOp, _ *WorkEnds) {
			put(*ops, "fixed").Messages[0].DeliverAtMs++
		}},
		"a delay that is too short": {"delayed at 0.2 has time 1000999, ", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "b", "delayed").DeliverAtMs = beginMs + 999
		}},
		"a delay that is too long": {"delayed at 0.2 has time 1001011, ", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "b", "delayed").DeliverAtMs = beginMs + 1011
		}},
		"another priority than was wanted": {"priority 3, and", func(ops *[]WorkOp, _ *WorkEnds) {
			leaseOf(*ops, "b", "delayed").Priority = 3
		}},
		"a low priority before a high one": {"b got fixed at 0.3 of priority 7 behind one of priority 4", func(ops *[]WorkOp, _ *WorkEnds) {
			its := taken(*ops, "b", "fixed").Leases
			its[0], its[1] = its[1], its[0]
		}},
		"a message after its end": {"b got short at 0.4 of node 1, and had asked 95 ms after its end", func(ops *[]WorkOp, _ *WorkEnds) {
			at(taken(*ops, "b", "short"), 3100)
		}},
		"an accepted message comes again": {"c got m1 at 0.0 of node 1, and had asked 0.870 s after 0.0.1 of a was settled (accept)", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "a", "m1"), "m1", "c", 2, 1000)
		}},
		"an accepted message is accepted again": {"0.0.1 of m1 at 0.0 was settled (accept), and 0.0.2 of c, too (accept)", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "a", "m1"), "m1", "c", 2, 110)
			says(ops, *taken(*ops, "a", "m1"), "c", "0.0.2", Accept, 125)
		}},
		"an accepted message is released": {"0.0.1 of m1 at 0.0 was settled (accept), and 0.0.2 of c, too (release)", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "a", "m1"), "m1", "c", 2, 110)
			says(ops, *taken(*ops, "a", "m1"), "c", "0.0.2", Release, 140)
		}},
		"a rejected message comes again": {"was settled (reject)", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "a", "bad"), "bad", "c", 2, 20_500)
		}},
		"an exhausted message comes again": {"0.6.5 of b was settled (release)", func(ops *[]WorkOp, _ *WorkEnds) {
			says(ops, *taken(*ops, "b", "tired"), "b", "0.6.5", Release, 4520)
			another(ops, *taken(*ops, "b", "tired"), "tired", "c", 5, 20_500)
		}},
		"a lease that is settled twice": {"0.0.1 of a of m1 at 0.0 was settled twice", func(ops *[]WorkOp, _ *WorkEnds) {
			says(ops, *taken(*ops, "a", "m1"), "a", "0.0.1", Accept, 140)
		}},
		"two leases that are held at once": {"were held at once", func(ops *[]WorkOp, _ *WorkEnds) {
			at(settled(*ops, "a", "0.1.1", Release), 175)
			settled(*ops, "b", "0.1.2", Accept).Outcome = OK
			at(taken(*ops, "b", "m2"), 150)
		}},
		"a lease that is settled after the next one": {"0.9.1 of a of calm1 at 0.9 was settled (accept) 0.190 s after the answer with 0.9.2 of b", func(ops *[]WorkOp, _ *WorkEnds) {
			settled(*ops, "a", "0.9.1", Accept).Outcome = OK
			settled(*ops, "b", "0.9.2", Accept).Outcome = Fail
		}},
		"a lease that is renewed after the next one": {"was settled (renew)", func(ops *[]WorkOp, _ *WorkEnds) {
			says(ops, *taken(*ops, "a", "calm1"), "a", "0.9.1", Renew, 23_200)
		}},
		"a release that does not count": {"0.1.1 of b of m2 at 0.1 came after 0.1.1 of a, and counts 1 deliveries", func(ops *[]WorkOp, _ *WorkEnds) {
			*leaseOf(*ops, "b", "m2") = *leaseOf(*ops, "a", "m2")
			op := settled(*ops, "b", "0.1.2", Accept)
			op.Lease, op.Outcome = "0.1.1", OK
		}},
		"a delivery that does not count": {"0.9.1 of b of calm1 at 0.9 came after 0.9.1 of a, and counts 1 deliveries", func(ops *[]WorkOp, _ *WorkEnds) {
			*leaseOf(*ops, "b", "calm1") = *leaseOf(*ops, "a", "calm1")
			settled(*ops, "b", "0.9.2", Accept).Lease = "0.9.1"
		}},
		"a delivery above the limit": {"is delivery 6, of at most 5", func(ops *[]WorkOp, _ *WorkEnds) {
			it := leaseOf(*ops, "b", "tired")
			it.Lease, it.Deliveries = "0.6.6", 6
		}},
		"a lock that ends early": {"0.9.2 of b of calm1 at 0.9 was given out 0.190 s before the time of 0.9.1 of a was over", func(ops *[]WorkOp, _ *WorkEnds) {
			at(taken(*ops, "b", "calm1"), 22_800)
		}},
		"a renewed lock that ends early": {"was given out 0.490 s before the time of 0.11.1 of a was over", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "a", "calm3"), "calm3", "c", 2, 23_500)
			at(settled(*ops, "a", "0.11.1", Accept), 23_700)
		}},
		"a released message that comes before its time": {"calm2 at 0.10 was given out 190 ms before it may come again", func(ops *[]WorkOp, _ *WorkEnds) {
			at(taken(*ops, "b", "calm2"), 21_900)
		}},
		"a lease that is lost for no cause": {"0.10.2 of b of calm2 at 0.10 was told lease-lost (accept), for no cause", func(ops *[]WorkOp, _ *WorkEnds) {
			op := settled(*ops, "b", "0.10.2", Accept)
			op.Outcome, op.Error = Fail, "lease-lost"
		}},
		"a message out of order": {"chaos-ordered: 0.1.1 of o of m2 at 0.1 was given out before the group was done with m1 at 0.0", func(ops *[]WorkOp, _ *WorkEnds) {
			op := find(*ops, func(op WorkOp) bool { return op.Worker == "o" && op.Lease == "0.0.1" && op.Decision == Accept })
			at(op, 220)
		}},
		"an earlier message behind a later one": {"chaos-ordered: 0.0.2 of late of m1 at 0.0 was given out behind 0.1.1 of o of m2", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "o", "m1"), "m1", "late", 2, 20_900)
		}},
		"two messages of a queue at once": {"chaos-ordered: 0.0.1 of o of m1 at 0.0 and 0.2.1 of c of delayed at 0.2 were held at once", func(ops *[]WorkOp, _ *WorkEnds) {
			another(ops, *taken(*ops, "o", "delayed"), "delayed", "c", 1, 101)
			says(ops, *taken(*ops, "o", "delayed"), "c", "0.2.1", Accept, 118)
		}},
		"a problem that nobody expects": {"p was told, at a put: bad-request", func(ops *[]WorkOp, _ *WorkEnds) {
			put(*ops, "refused").Error, put(*ops, "refused").Unexpected = "bad-request", true
		}},
	}
	for name, it := range harms {
		t.Run(name, func(t *testing.T) {
			ops, ends := soundWork()
			it.harm(&ops, &ends)
			wrong, _ := CheckWork(ops, ends, true)
			if all := strings.Join(wrong, "\n"); !strings.Contains(all, it.says) {
				t.Fatalf("not found, but this was: %q", all)
			}
		})
	}
}
