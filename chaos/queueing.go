package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	queueTopic      = "chaos-queues"
	queuePartitions = 2
	queuesOfEach    = 2
	// A queue with more elements gets more deletions and trims than messages.
	elementsWanted = 40
)

// Problems that another client's change of the queue explains. Nothing was done.
var explained = []string{"unknown-element", "version-mismatch", "last-mismatch", "fenced"}

// Native clients of one queue share its tokens, so that each new token is larger than all before.
type sharedQueue struct {
	name      string
	partition int32
	token     atomic.Int64
}

// A message, in a request and in an answer.
type message struct {
	ID       string    `json:"id"`
	Value    string    `json:"value"`
	Position *Position `json:"position,omitempty"`
	Version  int64     `json:"version,omitempty"`
}

// do sends a request until its outcome is certain, to one node after the other, and completes the operation. Without
// `repeats` it ends with the first request whose outcome nobody knows.
func (n *native) do(op *QueueOp, repeats bool, method, path string, headers headers, body any) answer {
	op.Client, op.Call = n.name, now()
	told, outcome := n.attempt(op, repeats, method, path, headers, body)
	op.Return, op.Outcome = now(), outcome
	if outcome == OK && op.Kind != Retrieve {
		op.At, op.Last, op.Duplicate = told.At, told.Last, told.Duplicate
		if told.First != nil {
			op.At = told.First
		}
	}
	return told
}

func (n *native) attempt(op *QueueOp, repeats bool, method, path string, headers headers, body any) (answer, Outcome) {
	path = "/queues/" + op.Queue + path
	sent := Fail // what came of the attempts so far
	for range attemptsMax {
		op.Node = n.node + 1
		op.Attempts++
		told, err := n.send(method, path, headers, body)
		came, problem, isOver := judge(told, err)
		op.Error = problem
		switch {
		case came == OK:
			return told, OK
		case isOver:
			if op.Unexpected = !slices.Contains(explained, op.Error); op.Unexpected {
				op.Error += ": " + told.Detail
			}
			return told, sent
		case came == Unknown:
			sent = Unknown
		}
		if sent == Unknown && !repeats {
			break
		}
		n.node = (n.node + 1) % len(n.nodes)
		n.c.pause(time.Duration(100+rand.Intn(200)) * time.Millisecond)
	}
	return answer{}, sent
}

// textOf is a value of at most 2,000 bytes, so that a page has room for a whole queue. It is text.
func textOf(name string) string {
	value := valueOf(name)
	return string(value[:min(len(value), 2000)])
}

// namedBy is the name of what was read, or of what it is instead.
func namedBy(id, value string) string {
	if value != textOf(id) {
		return fmt.Sprintf("%s damaged: %q", id, value)
	}
	return id
}

func messagesOf(names []string) []message {
	messages := []message{}
	for _, name := range names {
		messages = append(messages, message{ID: name, Value: textOf(name)})
	}
	return messages
}

// tokenText is empty for 0, which stands for no token.
func tokenText(token int64) string {
	if token == 0 {
		return ""
	}
	return fmt.Sprintf("owner-%08d", token)
}

func tokenOf(text *string) int64 {
	if text == nil {
		return 0
	}
	token, _ := strconv.ParseInt(strings.TrimPrefix(*text, "owner-"), 10, 64)
	return token
}

func inTime(body map[string]any) map[string]any {
	body["timeout_ms"] = nodePatience.Milliseconds()
	return body
}

// createQueues makes the topic, and returns queues of all its partitions.
func createQueues(nodes []string) ([]*sharedQueue, error) {
	n := (&Clients{stop: make(chan struct{})}).native("creator", nodes)
	settings := map[string]any{"partitions": queuePartitions, "replication_factor": len(nodes),
		"settings": map[string]string{"queue.enable": "true"}}
	var last error
	for deadline := time.Now().Add(formsWithin); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		told, err := n.send(http.MethodPut, "", nil, settings)
		if err == nil && (told.Type == "" || told.problem() == "topic-exists") {
			var queues []*sharedQueue
			if queues, last = n.findQueues(); last == nil {
				return queues, nil
			}
		} else if last = err; err == nil {
			last = errors.New(told.Type)
		}
		n.node = (n.node + 1) % len(n.nodes)
	}
	return nil, fmt.Errorf("no topic of queues within %s: %w", formsWithin, last)
}

func (n *native) findQueues() (queues []*sharedQueue, err error) {
	var has [queuePartitions]int
	for number := 0; len(queues) < queuePartitions*queuesOfEach; number++ {
		name := fmt.Sprintf("queue-%d", number)
		told, err := n.send(http.MethodGet, "/queues/"+name, nil, nil)
		if err != nil || told.Type != "" {
			return nil, errors.Join(err, errors.New(told.Type))
		}
		if has[told.Partition]++; has[told.Partition] <= queuesOfEach {
			queues = append(queues, &sharedQueue{name: name, partition: told.Partition})
		}
	}
	return queues, nil
}

// StartQueueing starts two writers a queue, one guest, who carries no token, and one reader a node.
func (c *Clients) StartQueueing(nodes []string, queues []*sharedQueue) {
	for _, queue := range queues {
		for _, letter := range []string{"a", "b"} {
			w := &writer{native: c.native(queue.name+"-"+letter, nodes), queue: queue}
			c.start(w.write)
		}
	}
	guest := c.native("guest", nodes)
	c.start(func() error {
		for c.pause(250 * time.Millisecond) {
			guest.visit(queues[rand.Intn(len(queues))].name)
		}
		return nil
	})
	for i := range nodes {
		reader := c.native(fmt.Sprintf("queue-reader-%d", i+1), nodes[i:i+1])
		c.start(func() error {
			for c.pause(200 * time.Millisecond) {
				op := reader.retrieve(queues[rand.Intn(len(queues))].name, rand.Intn(2) == 0)
				op.Node = i + 1
				c.history.AddQueued(op)
			}
			return nil
		})
	}
}

// visit appends a message with no token and no guard, once.
func (n *native) visit(queue string) QueueOp {
	op := QueueOp{Kind: Enqueue, Queue: queue, Names: []string{n.named()}}
	n.do(&op, false, http.MethodPost, "/messages", nil, inTime(map[string]any{"messages": messagesOf(op.Names)}))
	n.c.history.AddQueued(op)
	return op
}

// retrieve reads a queue through, and does not note it.
func (n *native) retrieve(queue string, stale bool) QueueOp {
	op := QueueOp{Client: n.name, Kind: Retrieve, Queue: queue, Stale: stale, Call: now()}
	path := "/messages?limit=1000&on_trimmed=skip"
	if stale {
		path += "&consistency=any_replica"
	}
	for after := ""; ; {
		told, outcome := n.attempt(&op, true, http.MethodGet, path+after, nil, nil)
		op.Return, op.Outcome = now(), outcome
		if outcome != OK {
			op.Elements = nil
			return op
		}
		op.Pages++
		for _, it := range told.Elements {
			op.Elements = append(op.Elements, Element{*it.Position, it.Version, namedBy(it.ID, it.Value)})
		}
		if !told.More || told.Next == nil {
			return op
		}
		after = "&after=" + told.Next.String()
	}
}

// A writer changes a queue while it has the fence, and takes it over from the other writer of the queue.
type writer struct {
	*native
	queue *sharedQueue
	// Its fence, or 0.
	token int64
	// The queue's last element, as far as it knows; a guard names it.
	last *Position
	// The queue as it read it last, without what it has deleted since; good for some changes.
	seen  []Element
	fresh int
	// A request of this token may still take effect, and behind a cut it could be done a second time. So a rewrite takes a
	// new token first.
	pending bool
}

func (w *writer) write() error {
	for w.c.pause(time.Duration(50+rand.Intn(150)) * time.Millisecond) {
		if w.token == 0 {
			w.takeOver()
			continue
		}
		if w.fresh == 0 {
			w.look()
			continue
		}
		w.fresh--
		chance := rand.Intn(100)
		if len(w.seen) > elementsWanted {
			chance = 40 + rand.Intn(60)
		}
		switch {
		case chance < 35:
			w.enqueue(rand.Intn(4) > 0)
		case chance < 40 && rand.Intn(2) == 0:
			w.token = 0 // of its own will, so that takeovers follow each other
		case len(w.seen) == 0:
			w.enqueue(true)
		case chance < 65:
			w.delete()
		case chance < 88:
			w.replace()
		case chance < 95:
			w.rewrite()
		default:
			w.trim()
		}
	}
	return nil
}

// finished notes a change, and gives the fence up after the other one has taken it.
func (w *writer) finished(op QueueOp) {
	w.c.history.AddQueued(op)
	if op.Outcome == Unknown || op.Attempts > 1 {
		w.pending = true
	}
	if op.Error == "fenced" {
		w.token = 0
		w.c.pause(time.Duration(1000+rand.Intn(4000)) * time.Millisecond)
	}
	if op.Outcome != OK {
		w.fresh = 0
	}
}

func (w *writer) takeOver() {
	ask := QueueOp{Kind: AskFence, Queue: w.queue.name}
	told := w.do(&ask, true, http.MethodGet, "", nil, nil)
	ask.Token, ask.Last = tokenOf(told.Fence), told.Last
	w.c.history.AddQueued(ask)
	if ask.Outcome != OK {
		return
	}
	// It is made after the question, so it is larger than what is there.
	op := QueueOp{Kind: Fence, Queue: w.queue.name, Token: w.queue.token.Add(1), IfToken: ask.Token}
	w.do(&op, true, http.MethodPut, "/fence", nil, inTime(map[string]any{"token": tokenText(op.Token),
		"if_token": tokenText(op.IfToken)}))
	w.c.history.AddQueued(op)
	if op.Outcome == OK {
		w.token, w.last, w.fresh, w.pending = op.Token, told.Last, 0, false
	}
}

func (w *writer) look() {
	op := w.retrieve(w.queue.name, false)
	w.c.history.AddQueued(op)
	if op.Outcome == OK {
		w.seen, w.fresh = slices.Clone(op.Elements), 1+rand.Intn(6)
	}
}

func (w *writer) enqueue(guarded bool) {
	op := QueueOp{Kind: Enqueue, Queue: w.queue.name, Token: w.token, Guarded: guarded}
	for range 1 + rand.Intn(3) {
		op.Names = append(op.Names, w.named())
	}
	guard := map[string]string{"fence": tokenText(w.token)}
	if guarded {
		op.IfLast = w.last
		guard["last"] = "none"
		if w.last != nil {
			guard["last"] = w.last.String()
		}
	}
	// Without a guard a request that came twice would be taken twice.
	body := inTime(map[string]any{"messages": messagesOf(op.Names), "guard": guard})
	told := w.do(&op, guarded, http.MethodPost, "/messages", nil, body)
	if told.problem() == "last-mismatch" || op.Outcome == OK {
		w.last = told.Last
	}
	w.finished(op)
	if op.Outcome == OK && guarded && rand.Intn(5) == 0 {
		again := QueueOp{Kind: Enqueue, Queue: op.Queue, Names: op.Names, Token: op.Token, Guarded: true, IfLast: op.IfLast,
			Again: true}
		w.do(&again, true, http.MethodPost, "/messages", nil, body)
		w.finished(again)
	}
}

func (w *writer) delete() {
	op := QueueOp{Kind: Delete, Queue: w.queue.name, Token: w.token}
	for range 1 + rand.Intn(3) {
		if len(w.seen) > 0 {
			i := rand.Intn(len(w.seen))
			op.Targets = append(op.Targets, w.seen[i].Position)
			w.seen = slices.Delete(w.seen, i, i+1)
		}
	}
	w.do(&op, true, http.MethodPost, "/delete", nil, inTime(map[string]any{"positions": op.Targets,
		"fence": tokenText(w.token)}))
	w.finished(op)
}

func (w *writer) replace() {
	i := rand.Intn(len(w.seen))
	element := &w.seen[i]
	op := QueueOp{Kind: Replace, Queue: w.queue.name, Token: w.token, Names: []string{w.named()},
		Targets: []Position{element.Position}, IfVersion: element.Version}
	path := "/messages/" + element.Position.String()
	conditions := headers{"duramen-fence": tokenText(w.token), "if-match": fmt.Sprintf(`"%d"`, element.Version)}
	told := w.do(&op, true, http.MethodPut, path, conditions, messagesOf(op.Names)[0])
	if op.Outcome == OK {
		element.Version, element.Name = told.Version, op.Names[0]
	}
	w.finished(op)
	if op.Outcome == OK && rand.Intn(5) == 0 {
		again := QueueOp{Kind: Replace, Queue: op.Queue, Token: op.Token, Names: op.Names, Targets: op.Targets,
			IfVersion: op.IfVersion, Again: true}
		w.do(&again, true, http.MethodPut, path, conditions, messagesOf(op.Names)[0])
		w.finished(again)
	}
}

// rewrite sends a request once: it could be done again behind what others appended meanwhile. If nobody knows what came
// of it, the next token makes sure that nothing comes of it later.
func (w *writer) rewrite() {
	if w.pending {
		w.takeOver()
		if w.pending || w.token == 0 {
			return
		}
	}
	op := QueueOp{Kind: Rewrite, Queue: w.queue.name, Token: w.token}
	body := inTime(map[string]any{"fence": tokenText(w.token), "reason": "chaos"})
	if i := rand.Intn(len(w.seen) + 1); i < len(w.seen) && rand.Intn(8) > 0 {
		op.Targets = []Position{w.seen[i].Position}
		body["after"] = op.Targets[0]
	} else {
		body["none"] = true
	}
	for range rand.Intn(5) {
		op.Names = append(op.Names, w.named())
	}
	body["messages"] = messagesOf(op.Names)
	w.do(&op, false, http.MethodPost, "/rewrite", nil, body)
	if op.Outcome == OK && len(op.Names) > 0 {
		w.last = op.Last
	}
	w.fresh = 0
	w.finished(op)
	if op.Outcome == Unknown {
		w.token = 0
	}
}

func (w *writer) trim() {
	through := w.seen[rand.Intn(1+len(w.seen)/2)].Position
	op := QueueOp{Kind: Trim, Queue: w.queue.name, Token: w.token, Targets: []Position{through}}
	w.do(&op, true, http.MethodPost, "/trim", nil, inTime(map[string]any{"through": through, "fence": tokenText(w.token),
		"pointer": map[string]string{"uri": "chaos:" + through.String()}}))
	w.fresh = 0
	w.finished(op)
}

// Record is what a plain consumer gets of a partition of queues.
type Record struct {
	Queue     string
	Partition int32
	Offset    int64
	Name      string
}

// Ends is what queues and their logs have in the end.
type Ends struct {
	Queues  map[string][]Element
	Records []Record
}

// endQueues demands an append to each queue, reads all queues at all nodes, and reads the logs as a plain consumer. All
// clients have ended. A change without an answer may still happen, so it reads until nothing changes meanwhile.
func endQueues(cluster *Cluster, history *History, queues []*sharedQueue) (Ends, error) {
	quiet := &Clients{history: history, stop: make(chan struct{})}
	last := quiet.native("last", cluster.Natives())
	began := time.Now()
	for why := errors.New("never read"); ; {
		ends, err := last.visitAll(queues)
		if err != nil {
			return Ends{}, err
		}
		fmt.Printf("all queues took an append within %s\n", time.Since(began).Round(time.Millisecond))
		before, err := quiet.readQueues(cluster, queues)
		if err != nil {
			return Ends{}, err
		}
		records, err := readQueueLogs(cluster, ends)
		after, errAfter := quiet.readQueues(cluster, queues)
		if why = errors.Join(err, errAfter); why == nil {
			if reflect.DeepEqual(before, after) {
				return Ends{Queues: after, Records: records}, nil
			}
			why = errors.New("they go on changing")
		}
		if time.Since(began) > readsWithin {
			return Ends{}, fmt.Errorf("queues cannot be read within %s after all clients have ended: %w", readsWithin, why)
		}
	}
}

// visitAll appends to each queue, and returns the last offset of each partition.
func (n *native) visitAll(queues []*sharedQueue) (map[int32]int64, error) {
	ends := make(map[int32]int64)
	for deadline := time.Now().Add(appendsWithin); len(queues) > 0; {
		op := n.visit(queues[0].name)
		if op.Outcome == OK {
			ends[queues[0].partition] = op.Last.Offset
			queues = queues[1:]
		} else if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s takes no append within %s after all faults: %s", op.Queue, appendsWithin, op.Error)
		}
	}
	return ends, nil
}

// readQueues asks each node for each queue, and returns what the last one told.
func (c *Clients) readQueues(cluster *Cluster, queues []*sharedQueue) (map[string][]Element, error) {
	told := make(map[string][]Element)
	for i := range cluster.Nodes {
		reader := c.native(fmt.Sprintf("last-reader-%d", i+1), cluster.Natives()[i:i+1])
		for _, queue := range queues {
			op := reader.retrieve(queue.name, false)
			op.Node = i + 1
			c.history.AddQueued(op)
			if op.Outcome != OK {
				return nil, fmt.Errorf("node %d does not show %s, though all faults are over: %s", i+1, queue.name, op.Error)
			}
			told[queue.name] = op.Elements
		}
	}
	return told, nil
}

// readQueueLogs reads each partition as a plain consumer, up to a record that is there.
func readQueueLogs(cluster *Cluster, ends map[int32]int64) (records []Record, err error) {
	from := make(map[int32]kgo.Offset)
	for partition := range ends {
		from[partition] = kgo.NewOffset().At(0)
	}
	client, err := newClient(cluster.Bootstrap(), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{queueTopic: from}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	context, cancel := context.WithTimeout(context.Background(), readsWithin/2)
	defer cancel()
	for left := len(ends); left > 0; {
		fetches := client.PollFetches(context)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("a consumer of %s, with %d records: %w", queueTopic, len(records), err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			id := "without an id"
			for _, header := range record.Headers {
				if header.Key == "duramen-id" {
					id = string(header.Value)
				}
			}
			name := namedBy(id, string(record.Value))
			records = append(records, Record{string(record.Key), record.Partition, record.Offset, name})
			if record.Offset == ends[record.Partition] {
				left--
			}
		})
	}
	return records, nil
}
