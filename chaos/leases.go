package main

import (
	"fmt"
	"math/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	workTopic      = "chaos-work"
	deadTopic      = "chaos-work-dead"
	workPartitions = 3
	workQueues     = 6
	// Settings of both groups: the time of a lease, and the most deliveries of a message.
	lockFor       = 2 * time.Second
	deliveriesMax = 5
	// Longest wait of a node for a lease; the client waits longer.
	leaseWaitMax = 2 * time.Second
	// Priority of a message that has none.
	plainPriority = 4
)

// WorkGroup is a share group of native workers.
type WorkGroup struct {
	Name string
	// One message of a queue is out at a time.
	IsOrdered bool
}

var workGroups = []WorkGroup{{"chaos-workers", false}, {"chaos-ordered", true}}

// Problems that the end of a lease explains, or another producer's message. Nothing was done.
var explainedWork = []string{"lease-lost", "last-mismatch"}

// A lease in an answer.
type leased struct {
	Lease      string
	Queue      string
	Deliveries int
	Partition  int32
	Element    struct {
		ID, Value string
		Position  Position
		Headers   map[string]string
	}
}

// lease returns it as the history has it.
func (l leased) lease() Lease {
	number := func(header string) int64 {
		number, _ := strconv.ParseInt(l.Element.Headers[header], 10, 64)
		return number
	}
	lease := Lease{Lease: l.Lease, Queue: l.Queue, Name: namedBy(l.Element.ID, l.Element.Value), Partition: l.Partition,
		Position: l.Element.Position, Deliveries: l.Deliveries, DeliverAtMs: number("duramen-deliver-at"),
		ExpiresMs: number("duramen-expires"), Priority: plainPriority}
	if _, has := l.Element.Headers["duramen-priority"]; has {
		lease.Priority = int(number("duramen-priority"))
	}
	return lease
}

// A lease that was not settled, in an answer.
type unsettled struct {
	Lease   string
	Problem answer
}

// begin notes the time of a call.
func (op *WorkOp) begin() { op.Call, op.CallMs = now(), time.Now().UnixMilli() }

// end notes the time of an answer, or of giving up.
func (op *WorkOp) end(outcome Outcome) {
	op.Return, op.ReturnMs, op.Outcome = now(), time.Now().UnixMilli(), outcome
}

// refuse notes a problem after which nothing else comes of an operation.
func (op *WorkOp) refuse(problem, detail string) {
	op.Error = problem
	if op.Unexpected = !slices.Contains(explainedWork, problem); op.Unexpected {
		op.Error += ": " + detail
	}
}

func (n *native) moveOn() { n.node = (n.node + 1) % len(n.nodes) }

// ask sends a request until its outcome is certain, as `do` does for queues.
func (n *native) ask(op *WorkOp, attempts int, path string, body any) (told answer) {
	op.Client = n.name
	op.begin()
	sent := Fail // what came of the attempts so far
	for op.Attempts < attempts {
		op.Node = n.node + 1
		op.Attempts++
		told, err := n.send(http.MethodPost, path, nil, body)
		came, problem, isOver := judge(told, err)
		op.Error = problem
		switch {
		case came == OK:
			op.end(OK)
			return told
		case isOver:
			op.refuse(problem, told.Detail)
			op.end(sent)
			return told
		case came == Unknown:
			sent = Unknown
		}
		n.moveOn()
		n.c.pause(time.Duration(100+rand.Intn(200)) * time.Millisecond)
	}
	op.end(sent)
	return answer{}
}

// A producer is the only one that appends to a queue under guards. So a request that comes twice is taken once.
type producer struct {
	*native
	queue string
	last  *Position
}

func (p *producer) produce() error {
	for p.c.pause(time.Duration(200+rand.Intn(400)) * time.Millisecond) {
		p.put(true)
	}
	return nil
}

// put appends messages; without a guard it sends them once.
func (p *producer) put(isGuarded bool) {
	op := WorkOp{Kind: Put, Queue: p.queue}
	var messages []map[string]any
	for range 1 + rand.Intn(3) {
		wanted := p.message()
		op.Messages = append(op.Messages, wanted)
		messages = append(messages, wanted.body())
	}
	body, attempts := inTime(map[string]any{"messages": messages}), 1
	if isGuarded {
		attempts = attemptsMax
		guard := "none"
		if p.last != nil {
			guard = p.last.String()
		}
		body["guard"] = map[string]string{"last": guard}
	}
	told := p.ask(&op, attempts, "/queues/"+p.queue+"/messages", body)
	if op.Outcome == OK {
		op.At = told.First
	}
	if told.Last != nil {
		p.last = told.Last
	}
	p.c.history.AddWorked(op)
}

// message chooses a message: one in four has a time of delivery, one in five a priority, one in ten an end.
func (p *producer) message() Message {
	wanted := Message{Name: p.named(), Priority: plainPriority}
	switch rand.Intn(8) {
	case 0:
		wanted.DelayMs = 1 + rand.Int63n(5000)
	case 1:
		wanted.DeliverAtMs = time.Now().UnixMilli() + rand.Int63n(5000)
	}
	if rand.Intn(5) == 0 {
		wanted.Priority = rand.Intn(10)
	}
	if rand.Intn(10) == 0 {
		wanted.TTLMs = 1 + rand.Int63n(6000)
	}
	return wanted
}

func (m Message) body() map[string]any {
	body := map[string]any{"id": m.Name, "value": textOf(m.Name)}
	set := func(member string, value, none int64) {
		if value != none {
			body[member] = value
		}
	}
	set("delay_ms", m.DelayMs, 0)
	set("deliver_at_ms", m.DeliverAtMs, 0)
	set("ttl_ms", m.TTLMs, 0)
	set("priority", int64(m.Priority), plainPriority)
	return body
}

// A worker leases messages of a group, and settles them in all ways that there are.
type worker struct {
	*native
	group WorkGroup
	// It goes by another name in each call, so that no two of its leases have the same name.
	isRenamed bool
	calls     int
	// Nothing is held up any more: it accepts all that it gets.
	isEarnest *atomic.Bool
}

func (w *worker) work() error {
	for !w.c.isOver() {
		op := w.take()
		if op.Outcome != OK || rand.Intn(10) == 0 {
			w.moveOn()
		}
		if op.Outcome != OK {
			w.c.pause(time.Duration(50+rand.Intn(200)) * time.Millisecond)
			continue
		}
		w.decide(op)
		w.c.pause(time.Duration(rand.Intn(50)) * time.Millisecond)
	}
	return nil
}

// take asks for leases once. What a call has got whose answer is lost nobody knows.
func (w *worker) take() WorkOp {
	op := WorkOp{Kind: Take, Group: w.group.Name, Worker: w.name, Limit: 1 + rand.Intn(6)}
	if w.calls++; w.isRenamed {
		op.Worker = fmt.Sprintf("%s.%d", w.name, w.calls)
	}
	body := map[string]any{"worker": op.Worker, "limit": op.Limit}
	if rand.Intn(5) > 0 {
		body["wait_ms"] = rand.Int63n(leaseWaitMax.Milliseconds())
	}
	if rand.Intn(5) == 0 {
		body["partition"] = rand.Intn(workPartitions)
	}
	told := w.ask(&op, 1, "/groups/"+w.group.Name+"/lease", body)
	for _, it := range told.Leases {
		op.Leases = append(op.Leases, it.lease())
		if told.LockMs != lockFor.Milliseconds() {
			op.refuse("another time of leases", fmt.Sprintf("%d ms", told.LockMs))
		}
	}
	w.c.history.AddWorked(op)
	return op
}

// decide settles the leases of a call, most of them at once, and some never.
func (w *worker) decide(op WorkOp) {
	var accepted []Lease
	later := func(lease Lease, delays ...time.Duration) {
		it := *w
		other := *w.native // it asks nodes in an order of its own
		it.native = &other
		w.c.start(func() error {
			w.c.pause(delays[0])
			for _, delay := range delays[1:] {
				it.settle(op, []Lease{lease}, Renew, 0)
				w.c.pause(delay)
			}
			it.settle(op, []Lease{lease}, Accept, 0)
			return nil
		})
	}
	part := func(of time.Duration) time.Duration { return time.Duration(rand.Int63n(int64(of))) }
	for _, lease := range op.Leases {
		chance := rand.Intn(100)
		isLast := lease.Deliveries >= deliveriesMax-1 && rand.Intn(3) > 0
		if w.isEarnest.Load() || isLast || w.group.IsOrdered && rand.Intn(2) == 0 {
			chance = 99
		}
		switch {
		case chance < 8:
			w.settle(op, []Lease{lease}, Release, 0)
		case chance < 13:
			w.settle(op, []Lease{lease}, Release, 1+rand.Int63n(1500))
		case chance < 17:
			w.settle(op, []Lease{lease}, Reject, 0)
		case chance < 22: // its time ends
		case chance < 27:
			later(lease, part(lockFor), part(lockFor)) // once it renews the lease
		case chance < 29:
			later(lease, part(lockFor), part(lockFor), part(lockFor))
		case chance < 34:
			later(lease, lockFor+part(lockFor)) // which is too late
		case chance < 36 && w.isRenamed:
			w.settle(op, []Lease{lease}, Unseen, 0)
		default:
			accepted = append(accepted, lease)
		}
	}
	if len(accepted) > 0 {
		w.settle(op, accepted, Accept, 0)
	}
}

// settle says the same of several leases, and repeats it until the outcome of each is certain.
func (w *worker) settle(taken WorkOp, leases []Lease, decision Decision, delayMs int64) {
	open := make(map[string]*WorkOp)
	sent := make(map[string]Outcome) // what came of the attempts so far
	for _, it := range leases {
		op := &WorkOp{Client: w.name, Kind: Settle, Group: taken.Group, Worker: taken.Worker, Lease: it.Lease,
			Decision: decision, DelayMs: delayMs}
		op.begin()
		open[it.Lease], sent[it.Lease] = op, Fail
	}
	finish := func(op *WorkOp, outcome Outcome) {
		op.end(outcome)
		delete(open, op.Lease)
		w.c.history.AddWorked(*op)
	}
	for attempt := 1; attempt <= attemptsMax && len(open) > 0; attempt++ {
		if attempt > 1 {
			w.moveOn()
			w.c.pause(time.Duration(100+rand.Intn(200)) * time.Millisecond)
		}
		told, err := w.send(http.MethodPost, "/groups/"+taken.Group+"/settle", nil, bodyOf(taken.Worker, open))
		refused := make(map[string]answer)
		for _, it := range told.Unsettled {
			refused[it.Lease] = it.Problem
		}
		for _, op := range open {
			its := told
			if problem, is := refused[op.Lease]; is {
				its = problem
			}
			came, problem, isOver := judge(its, err)
			op.Node, op.Attempts, op.Error = w.node+1, attempt, problem
			switch {
			case came == OK:
				finish(op, OK)
			case isOver:
				op.refuse(problem, its.Detail)
				finish(op, sent[op.Lease])
			case came == Unknown:
				sent[op.Lease] = Unknown
			}
		}
	}
	for _, op := range open {
		finish(op, sent[op.Lease])
	}
}

// bodyOf returns the request that settles leases.
func bodyOf(worker string, open map[string]*WorkOp) map[string]any {
	var settlements []map[string]any
	for _, op := range open {
		settlement := map[string]any{"lease": op.Lease, "decision": op.Decision}
		if op.DelayMs > 0 {
			settlement["delay_ms"] = op.DelayMs
		}
		settlements = append(settlements, settlement)
	}
	return map[string]any{"worker": worker, "settlements": settlements}
}

// parsed returns the partition, the offset and the deliveries that the name of a lease says.
func parsed(lease string) (partition int32, offset int64, deliveries int, err error) {
	if strings.Count(lease, ".") != 2 {
		return 0, 0, 0, fmt.Errorf("%q is no name of a lease", lease)
	}
	_, err = fmt.Sscanf(lease, "%d.%d.%d", &partition, &offset, &deliveries)
	return partition, offset, deliveries, err
}
