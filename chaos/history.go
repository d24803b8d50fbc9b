package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// What a client did, and what it was told.
type Op struct {
	Client    string `json:"client"`
	Kind      Kind   `json:"kind"`
	Partition int32  `json:"partition"`
	// The node that answered, where the client asked one on purpose.
	Node int `json:"node,omitempty"`
	// Appends: what was appended, and which of its producer's records in this partition it is.
	Value  string `json:"value,omitempty"`
	Number int    `json:"number,omitempty"`
	// Appends: where it is. Reads: where the first value is. Ends: one past the last.
	Offset int64    `json:"offset"`
	Values []string `json:"values,omitempty"`
	// CLOCK_MONOTONIC, in nanoseconds, the same for all processes.
	Call    int64   `json:"call"`
	Return  int64   `json:"return"`
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	// The error is one after which a client tries again.
	Retriable bool `json:"retriable,omitempty"`
	// Kafka's number for it, where the client says no more.
	Code int16 `json:"code,omitempty"`
}

// QueueOp is an operation of a native client on one queue, with all of its attempts.
type QueueOp struct {
	Client string    `json:"client"`
	Kind   QueueKind `json:"kind"`
	Queue  string    `json:"queue"`
	// The node that was asked last.
	Node int `json:"node"`
	// Enqueue, Rewrite: ids of the messages. Replace: id of the new content.
	Names []string `json:"names,omitempty"`
	// Enqueue, Replace: the same request was acknowledged before, and comes once more on purpose.
	Again bool `json:"again,omitempty"`
	// Delete: the elements. Replace: the element. Trim: the last position that goes. Rewrite: the last one that stays, or
	// nothing.
	Targets []Position `json:"targets,omitempty"`
	// Replace: the version that the element has to have.
	IfVersion int64 `json:"if_version,omitempty"`
	// Enqueue: the queue has to end with IfLast, or to be empty if that is absent.
	Guarded bool      `json:"guarded,omitempty"`
	IfLast  *Position `json:"if_last,omitempty"`
	// The token that a change carries, and 0 for none. Fence: the new one. AskFence: the one that was told.
	Token int64 `json:"token,omitempty"`
	// Fence: the token before.
	IfToken int64 `json:"if_token,omitempty"`
	// The first and the last record of the entry, where the answer names them.
	At   *Position `json:"at,omitempty"`
	Last *Position `json:"last,omitempty"`
	// The answer says that an earlier attempt had done it.
	Duplicate bool `json:"duplicate,omitempty"`
	// Retrieve: the whole queue. Stale: as the asked node has it.
	Elements []Element `json:"elements,omitempty"`
	Stale    bool      `json:"stale,omitempty"`
	Pages    int       `json:"pages,omitempty"`
	// Requests that were sent.
	Attempts int     `json:"attempts"`
	Call     int64   `json:"call"`
	Return   int64   `json:"return"`
	Outcome  Outcome `json:"outcome"`
	// The kind of problem, or the error of the connection.
	Error string `json:"error,omitempty"`
	// No client has to expect this problem.
	Unexpected bool `json:"unexpected,omitempty"`
}

type QueueKind string

const (
	Enqueue  QueueKind = "enqueue"
	Delete   QueueKind = "delete"
	Replace  QueueKind = "replace"
	Rewrite  QueueKind = "rewrite"
	Trim     QueueKind = "trim"
	Fence    QueueKind = "fence"
	Retrieve QueueKind = "retrieve"
	AskFence QueueKind = "ask fence"
)

// Position of a record; in text TERM.ENTRY.OFFSET.
type Position struct {
	Term          int32
	Entry, Offset int64
}

func (p Position) String() string { return fmt.Sprintf("%d.%d.%d", p.Term, p.Entry, p.Offset) }

func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Position) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%d.%d.%d", &p.Term, &p.Entry, &p.Offset)
	return err
}

// Element is an element of a queue, as a reader got it. The name is the id of its content.
type Element struct {
	Position Position `json:"position"`
	Version  int64    `json:"version"`
	Name     string   `json:"name"`
}

// WorkOp is an operation of a native client on the work queues, with all of its attempts.
type WorkOp struct {
	Client string   `json:"client"`
	Kind   WorkKind `json:"kind"`
	// The node that was asked last.
	Node int `json:"node"`
	// Put: the queue, the messages in their order, and the position of the first one.
	Queue    string    `json:"queue,omitempty"`
	Messages []Message `json:"messages,omitempty"`
	At       *Position `json:"at,omitempty"`
	// Take, Settle: the share group, and the name that the worker goes by.
	Group  string `json:"group,omitempty"`
	Worker string `json:"worker,omitempty"`
	// Take: the most leases that the worker wants, and those that it got.
	Limit  int     `json:"limit,omitempty"`
	Leases []Lease `json:"leases,omitempty"`
	// Settle: the lease and what the worker says of it.
	Lease    string   `json:"lease,omitempty"`
	Decision Decision `json:"decision,omitempty"`
	// Settle: the time for which a released message is held back.
	DelayMs int64 `json:"delay_ms,omitempty"`
	// Requests that were sent.
	Attempts int   `json:"attempts"`
	Call     int64 `json:"call"`
	Return   int64 `json:"return"`
	// The same by the wall clock, in milliseconds since 1970.
	CallMs   int64   `json:"call_ms"`
	ReturnMs int64   `json:"return_ms"`
	Outcome  Outcome `json:"outcome"`
	// The kind of problem, or the error of the connection.
	Error string `json:"error,omitempty"`
	// No client has to expect this problem.
	Unexpected bool `json:"unexpected,omitempty"`
}

type WorkKind string

const (
	Put    WorkKind = "put"
	Take   WorkKind = "take"
	Settle WorkKind = "settle"
)

type Decision string

const (
	Accept  Decision = "accept"
	Release Decision = "release"
	Reject  Decision = "reject"
	Renew   Decision = "renew"
	Unseen  Decision = "unseen"
)

// Message is a message as its producer wants it. A time of 0 is none.
type Message struct {
	Name string `json:"name"`
	// Its time of delivery: from now on, or by the wall clock.
	DelayMs     int64 `json:"delay_ms,omitempty"`
	DeliverAtMs int64 `json:"deliver_at_ms,omitempty"`
	TTLMs       int64 `json:"ttl_ms,omitempty"`
	Priority    int   `json:"priority"`
}

// Lease is one message as a worker got it. A time of 0 is none.
type Lease struct {
	Lease       string   `json:"lease"`
	Queue       string   `json:"queue"`
	Name        string   `json:"name"`
	Partition   int32    `json:"partition"`
	Position    Position `json:"position"`
	Deliveries  int      `json:"deliveries"`
	DeliverAtMs int64    `json:"deliver_at_ms,omitempty"`
	ExpiresMs   int64    `json:"expires_ms,omitempty"`
	Priority    int      `json:"priority"`
}

// Untold is the offset of an append that was acknowledged in one with a later one: librdkafka does so where the answers before
// are lost, and says nothing of the offset. A fast append has no offset yet when it is acknowledged.
const Untold = -2

type Kind string

const (
	Append Kind = "append"
	Read   Kind = "read"
	// Asks where the log ends.
	End Kind = "end"
)

type Outcome string

const (
	OK Outcome = "ok"
	// It certainly did not happen.
	Fail Outcome = "fail"
	// It happened once, or will, or never.
	Unknown Outcome = "unknown"
)

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

// History is all that clients did, in memory and, line by line, in a file.
type History struct {
	mutex  sync.Mutex
	ops    []Op
	queued []QueueOp
	worked []WorkOp
	file   *os.File
	lines  *bufio.Writer
}

func NewHistory(path string) (*History, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &History{file: file, lines: bufio.NewWriter(file)}, nil
}

func (h *History) Add(op Op) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ops = append(h.ops, op)
	h.write(op)
}

// AddQueued adds an operation on a queue.
func (h *History) AddQueued(op QueueOp) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.queued = append(h.queued, op)
	h.write(op)
}

// AddWorked adds an operation on the work queues.
func (h *History) AddWorked(op WorkOp) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.worked = append(h.worked, op)
	h.write(op)
}

func (h *History) write(op any) {
	line, err := json.Marshal(op)
	if err != nil {
		panic(err)
	}
	h.lines.Write(line)
	h.lines.WriteByte('\n')
}

func (h *History) Len() int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return len(h.ops)
}

// Close returns all of it.
func (h *History) Close() ([]Op, []QueueOp, []WorkOp, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.lines.Flush(); err != nil {
		return nil, nil, nil, err
	}
	return h.ops, h.queued, h.worked, h.file.Close()
}
