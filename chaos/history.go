package main

import (
	"bufio"
	"encoding/json"
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

// Untold is the offset of an append that was acknowledged in one with a later one: librdkafka does so where the answers before
// are lost, and says nothing of the offset.
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
	mutex sync.Mutex
	ops   []Op
	file  *os.File
	lines *bufio.Writer
}

func NewHistory(path string) (*History, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &History{file: file, lines: bufio.NewWriter(file)}, nil
}

func (h *History) Add(op Op) {
	line, err := json.Marshal(op)
	if err != nil {
		panic(err)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.ops = append(h.ops, op)
	h.lines.Write(line)
	h.lines.WriteByte('\n')
}

func (h *History) Len() int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return len(h.ops)
}

// Close returns all of it.
func (h *History) Close() ([]Op, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.lines.Flush(); err != nil {
		return nil, err
	}
	return h.ops, h.file.Close()
}
