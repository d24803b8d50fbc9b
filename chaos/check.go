package main

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// Of each kind of violation so many are told; one is seldom alone.
	toldOfAKind      = 5
	porcupineTimeout = 30 * time.Second
)

// Log is what a partition holds at the end, from offset 0.
type Log []string

// Check returns what is wrong with a history, as sentences. `logs` are the partitions as they were read when all faults
// were over, nobody appended any more and all replicas agreed. `ordered` says of a client that its appends to a partition
// must be there without a gap and in the order of their numbers: an idempotent producer that never gives up.
func Check(ops []Op, logs map[int32]Log, ordered func(client string) bool) []string {
	var wrong findings
	for partition, log := range logs {
		checkPartition(&wrong, partition, log, of(ops, partition), ordered)
	}
	for _, op := range ops {
		if op.Error != "" && !op.Retriable {
			wrong.add("error", "%s was told, in partition %d: %s, which a client does not try again", op.Client, op.Partition, op.Error)
		}
		if _, known := logs[op.Partition]; !known {
			wrong.add("partition", "%s names partition %d, which nobody read at the end", op.Client, op.Partition)
		}
	}
	return wrong.sentences()
}

func of(ops []Op, partition int32) []Op {
	var its []Op
	for _, op := range ops {
		if op.Partition == partition {
			its = append(its, op)
		}
	}
	return its
}

func checkPartition(wrong *findings, partition int32, log Log, ops []Op, ordered func(string) bool) {
	where := func(offset int64) string { return fmt.Sprintf("partition %d offset %d", partition, offset) }
	at := make(map[string]int64, len(log))
	for offset, value := range log {
		if first, twice := at[value]; twice {
			wrong.add("twice", "%s: %s is there twice, first at %d", where(int64(offset)), value, first)
		}
		at[value] = int64(offset)
	}
	holds := func(offset int64) string {
		if offset < 0 || offset >= int64(len(log)) {
			return "nothing"
		}
		return log[offset]
	}
	sent := make(map[string]bool)
	for i, op := range ops {
		switch {
		case op.Kind == Append:
			sent[op.Value] = true
			found, there := at[op.Value]
			if op.Outcome == OK && op.Offset == Untold {
				if !there {
					wrong.add("lost", "partition %d: %s was acknowledged, and is nowhere", partition, op.Value)
				}
				ops[i].Offset = found
			} else if op.Outcome == OK && holds(op.Offset) != op.Value {
				wrong.add("lost", "%s: %s was acknowledged there, at the end it holds %s", where(op.Offset), op.Value, holds(op.Offset))
			}
			if op.Outcome == Fail && there {
				wrong.add("failed", "%s: %s is there, though its producer was told %s", where(found), op.Value, op.Error)
			}
		case op.Kind == Read && op.Outcome == OK:
			for i, value := range op.Values {
				if offset := op.Offset + int64(i); holds(offset) != value {
					wrong.add("changed", "%s: %s saw %s, at the end it holds %s", where(offset), op.Client, value, holds(offset))
				}
			}
		}
	}
	for offset, value := range log {
		if !sent[value] {
			wrong.add("phantom", "%s: %s was never sent", where(int64(offset)), value)
		}
	}
	checkRealTime(wrong, partition, at, ops)
	checkOrder(wrong, partition, at, ops, ordered)
	checkEnds(wrong, partition, at, ops)
	// What is wrong otherwise makes its search very long, and for nothing.
	if !wrong.any() {
		checkLinearizable(wrong, partition, log, at, ops)
	}
}

// What was acknowledged before something else was sent stands before it.
func checkRealTime(wrong *findings, partition int32, at map[string]int64, ops []Op) {
	landed := completed(at, ops)
	sort.Slice(landed, func(i, j int) bool { return landed[i].Offset > landed[j].Offset })
	earliest := Op{Return: math.MaxInt64}
	for _, op := range landed {
		if earliest.Return < op.Call {
			wrong.add("order", "partition %d: %s at %d was acknowledged before %s was sent, which is at %d",
				partition, earliest.Value, earliest.Offset, op.Value, op.Offset)
		}
		if op.Return < earliest.Return {
			earliest = op
		}
	}
}

func checkOrder(wrong *findings, partition int32, at map[string]int64, ops []Op, ordered func(string) bool) {
	byClient := make(map[string][]Op)
	for _, op := range ops {
		if op.Kind == Append && ordered(op.Client) {
			byClient[op.Client] = append(byClient[op.Client], op)
		}
	}
	for client, sent := range byClient {
		sort.Slice(sent, func(i, j int) bool { return sent[i].Number < sent[j].Number })
		last := int64(-1)
		missing := ""
		for _, op := range sent {
			offset, there := at[op.Value]
			switch {
			case !there:
				missing = op.Value
			case missing != "":
				wrong.add("gap", "partition %d: %s of %s is there, and %s before it is not", partition, op.Value, client, missing)
				missing = ""
			}
			if there && offset < last {
				wrong.add("overtaken", "partition %d: %s of %s is at %d, before an earlier one", partition, op.Value, client, offset)
			}
			if there {
				last = offset
			}
		}
	}
}

// Where a log ends is told as it is at some moment between question and answer: not before what was known when it was
// asked, and not behind what was sent only after it was told.
func checkEnds(wrong *findings, partition int32, at map[string]int64, ops []Op) {
	landed := completed(at, ops)
	known, ends := slices.Clone(landed), []Op(nil)
	for _, op := range ops {
		switch {
		case op.Outcome != OK:
		case op.Kind == End:
			ends = append(ends, op)
			op.Offset--
			known = append(known, op)
		case op.Kind == Read:
			op.Offset += int64(len(op.Values)) - 1
			known = append(known, op)
		}
	}
	sort.Slice(known, func(i, j int) bool { return known[i].Return < known[j].Return })
	sort.Slice(ends, func(i, j int) bool { return ends[i].Call < ends[j].Call })
	last, next := Op{Offset: -1}, 0
	for _, end := range ends {
		for ; next < len(known) && known[next].Return < end.Call; next++ {
			if known[next].Offset > last.Offset {
				last = known[next]
			}
		}
		if end.Offset <= last.Offset {
			wrong.add("stale", "partition %d: %s was told by node %d that the log ends at %d; %s knew of offset %d %.3f s before it asked",
				partition, end.Client, end.Node, end.Offset, last.Client, last.Offset, float64(end.Call-last.Return)/1e9)
		}
	}
	sort.Slice(landed, func(i, j int) bool { return landed[i].Call > landed[j].Call })
	sort.Slice(ends, func(i, j int) bool { return ends[i].Return > ends[j].Return })
	first, next := Op{Offset: math.MaxInt64}, 0
	for _, end := range ends {
		for ; next < len(landed) && landed[next].Call > end.Return; next++ {
			if landed[next].Offset < first.Offset {
				first = landed[next]
			}
		}
		if end.Offset > first.Offset {
			wrong.add("early", "partition %d: %s was told by node %d that the log ends at %d, before %s was sent, which is at %d",
				partition, end.Client, end.Node, end.Offset, first.Value, first.Offset)
		}
	}
}

// All appends of which the log shows that they happened. One without an answer happened where the log has it, at any time
// from its call on; one that is not there never happened. Values are unique, so no other reading of the history is possible.
func completed(at map[string]int64, ops []Op) []Op {
	var landed []Op
	for _, op := range ops {
		if op.Kind != Append {
			continue
		}
		offset, there := at[op.Value]
		if !there {
			continue
		}
		if op.Outcome != OK {
			op.Offset, op.Return = offset, math.MaxInt64
		}
		landed = append(landed, op)
	}
	return landed
}

// The state is how many records the log has. An append happens at the moment when the log has as many records as its
// offset says; a read, when the log has all that it saw; who is told an end sees the log just so long.
func logModel(log Log) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			length, op := state.(int64), input.(Op)
			switch op.Kind {
			case Append:
				return op.Offset == length && length < int64(len(log)) && log[length] == op.Value, length + 1
			case Read:
				return op.Offset+int64(len(op.Values)) <= length, length
			default:
				return op.Offset == length, length
			}
		},
		Equal: func(a, b any) bool { return a == b },
		Hash:  func(state any) uint64 { return uint64(state.(int64)) },
	}
}

func checkLinearizable(wrong *findings, partition int32, log Log, at map[string]int64, ops []Op) {
	var history []porcupine.Operation
	add := func(op Op) {
		history = append(history, porcupine.Operation{Input: op, Call: op.Call, Return: op.Return})
	}
	for _, op := range completed(at, ops) {
		add(op)
	}
	for _, op := range ops {
		if op.Kind == Read && op.Outcome == OK {
			// A log only grows: who could be shown something at any moment of its read could be at the last one. That spares
			// a search through all orders of reads that wait for the same node.
			op.Call = op.Return
		}
		if op.Kind != Append && op.Outcome == OK {
			add(op)
		}
	}
	switch porcupine.CheckOperationsTimeout(logModel(log), history, porcupineTimeout) {
	case porcupine.Illegal:
		wrong.add("linear", "partition %d: its %d operations are not linearizable", partition, len(history))
	case porcupine.Unknown:
		wrong.add("linear", "partition %d: whether its %d operations are linearizable was not decided within %s",
			partition, len(history), porcupineTimeout)
	}
}

// Violations by kind.
type findings struct {
	kinds []string
	told  map[string][]string
	count map[string]int
}

func (f *findings) add(kind, format string, arguments ...any) {
	if f.count == nil {
		f.told, f.count = make(map[string][]string), make(map[string]int)
	}
	if f.count[kind] == 0 {
		f.kinds = append(f.kinds, kind)
	}
	if f.count[kind]++; f.count[kind] <= toldOfAKind {
		f.told[kind] = append(f.told[kind], fmt.Sprintf(format, arguments...))
	}
}

func (f *findings) any() bool { return len(f.kinds) > 0 }

func (f *findings) sentences() []string {
	var all []string
	for _, kind := range f.kinds {
		sentences := f.told[kind]
		if more := f.count[kind] - len(sentences); more > 0 {
			sentences[len(sentences)-1] += fmt.Sprintf("; and %d more of this kind", more)
		}
		all = append(all, sentences...)
	}
	return all
}

func (f *findings) String() string { return strings.Join(f.sentences(), "\n") }
