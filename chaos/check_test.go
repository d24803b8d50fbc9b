package main

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A sound history of two partitions: producers that overlap, one append without an answer that happened and one that did
// not, readers and askers.
func sound() ([]Op, map[int32]Log) {
	var ops []Op
	logs := make(map[int32]Log)
	for partition := range int32(2) {
		log := Log{}
		for i := range 200 {
			client := fmt.Sprintf("franz-go-%d", i%2)
			value := fmt.Sprintf("%s:%d-%d", client, partition, i)
			at := int64(1000 * i)
			// It is called while the one before it is not answered yet.
			ops = append(ops, Op{Client: client, Kind: Append, Partition: partition, Value: value, Number: i, Offset: int64(i),
				Call: at - 1500, Return: at + 100, Outcome: OK})
			log = append(log, value)
			if i%10 == 9 {
				ops = append(ops,
					Op{Client: "reader", Kind: Read, Partition: partition, Offset: int64(i - 9), Values: slices.Clone(log[i-9:]),
						Call: at, Return: at + 300, Outcome: OK},
					Op{Client: "asker", Kind: End, Partition: partition, Offset: int64(i + 1), Node: 1, Call: at + 200, Return: at + 300, Outcome: OK})
			}
		}
		unanswered := func(value string) Op {
			return Op{Client: "once", Kind: Append, Partition: partition, Value: value, Offset: -1, Call: 3000, Return: 5000,
				Outcome: Unknown, Error: "no answer", Retriable: true}
		}
		there := fmt.Sprintf("once:%d-there", partition)
		log = append(log, there) // long after its client gave up
		ops = append(ops, unanswered(there), unanswered(fmt.Sprintf("once:%d-gone", partition)))
		logs[partition] = log
	}
	rand.New(rand.NewSource(1)).Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	return ops, logs
}

// One that was acknowledged without an offset.
func untold(t *testing.T, ops []Op, value string) {
	find1(t, ops, func(op Op) bool { return op.Value == value }).Offset = Untold
}

func find1(t *testing.T, ops []Op, is func(Op) bool) *Op {
	t.Helper()
	for i := range ops {
		if is(ops[i]) {
			return &ops[i]
		}
	}
	t.Fatal("the sound history has no such operation")
	return nil
}

func TestASoundHistoryIsAccepted(t *testing.T) {
	ops, logs := sound()
	untold(t, ops, "franz-go-0:0-40")
	if wrong := Check(ops, logs, Ordered); len(wrong) > 0 {
		t.Fatal(strings.Join(wrong, "\n"))
	}
}

// Each harm is found by the check that is there for it; what the sentence says is matched.
func TestHarmedHistoriesAreRefused(t *testing.T) {
	value := func(wanted string) func(Op) bool { return func(op Op) bool { return op.Value == wanted } }
	harms := map[string]struct {
		says string
		harm func(t *testing.T, ops *[]Op, logs map[int32]Log)
	}{
		"an acknowledged append is lost from the end": {"at the end it holds nothing", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			logs[0] = logs[0][:199]
		}},
		"an acknowledged append is lost, and others took its place": {"was acknowledged there, at the end it holds", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			logs[0] = slices.Delete(slices.Clone(logs[0]), 50, 51)
		}},
		"an append that was acknowledged without an offset is lost": {"was acknowledged, and is nowhere", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			untold(t, *ops, logs[0][199])
			logs[0] = logs[0][:199]
		}},
		"an append that was acknowledged without an offset is there too late": {"was acknowledged before", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			untold(t, *ops, logs[0][50])
			moved := logs[0][50]
			logs[0] = append(slices.Delete(slices.Clone(logs[0]), 50, 51), moved)
		}},
		"an append is there twice": {"is there twice", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			logs[1] = append(slices.Clone(logs[1]), logs[1][7])
		}},
		"an append is there that nobody sent": {"was never sent", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			logs[1] = append(slices.Clone(logs[1]), "a stranger:1")
		}},
		"a refused append is there": {"though its producer was told", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			op := find1(t, *ops, value("once:0-there"))
			op.Outcome, op.Error = Fail, "NOT_ENOUGH_REPLICAS"
		}},
		"a reader saw what was cut later": {"saw once:0-gone, at the end it holds", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			read := find1(t, *ops, func(op Op) bool { return op.Kind == Read && op.Partition == 0 })
			read.Values[3] = "once:0-gone"
		}},
		"a reader saw other bytes": {"damaged", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			read := find1(t, *ops, func(op Op) bool { return op.Kind == Read })
			read.Values[0] += " damaged: 00"
		}},
		"two appends that followed each other are swapped": {"was acknowledged before", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			swap(t, *ops, logs, 20, 26)
		}},
		"a producer's appends overtook each other": {"before an earlier one", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			for i := range *ops { // so slow that only the producer's own order is left
				(*ops)[i].Return = 1 << 40
				(*ops)[i].Call = 0
			}
			swap(t, *ops, logs, 20, 26)
		}},
		"a producer's append is not there, and a later one is": {"before it is not", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			op := find1(t, *ops, value("franz-go-0:0-0"))
			*op = Op{Client: op.Client, Kind: Append, Partition: 0, Value: "franz-go-0:never", Number: 0, Outcome: Unknown}
			logs[0][0] = "once:0-gone"
		}},
		"a stale end": {"told by node 1 that the log ends at 5; ", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			*ops = append(*ops, Op{Client: "asker", Kind: End, Node: 1, Offset: 5, Call: 150_000, Return: 150_001, Outcome: OK})
		}},
		"an end before its appends": {"told by node 1 that the log ends at 150, before", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			*ops = append(*ops, Op{Client: "asker", Kind: End, Node: 1, Offset: 150, Call: 100, Return: 101, Outcome: OK})
		}},
		"a read before its appends": {"not linearizable", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			for i := range *ops { // nobody asked where it ends, so that only Porcupine is left
				if (*ops)[i].Kind == End {
					(*ops)[i].Outcome = Unknown
				}
			}
			*ops = append(*ops, Op{Client: "reader", Kind: Read, Offset: 150, Values: logs[0][150:151], Call: 100, Return: 101, Outcome: OK})
		}},
		"an end that falls": {"told by node 2 that the log ends at 100; asker knew", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			// Each by itself could be: the appends overlap both.
			*ops = append(*ops,
				Op{Client: "asker", Kind: End, Node: 1, Offset: 101, Call: 99_200, Return: 99_300, Outcome: OK},
				Op{Client: "asker", Kind: End, Node: 2, Offset: 100, Call: 99_400, Return: 99_500, Outcome: OK})
		}},
		"a client was told to give up": {"a client does not try again", func(t *testing.T, ops *[]Op, logs map[int32]Log) {
			find1(t, *ops, value("once:0-gone")).Retriable = false
		}},
	}
	for name, it := range harms {
		t.Run(name, func(t *testing.T) {
			ops, logs := sound()
			it.harm(t, &ops, logs)
			wrong := strings.Join(Check(ops, logs, Ordered), "\n")
			if !strings.Contains(wrong, it.says) {
				t.Fatalf("not found, but this was: %q", wrong)
			}
		})
	}
}

// The log and the answers say the same; only the times do not fit.
func swap(t *testing.T, ops []Op, logs map[int32]Log, one, other int64) {
	a := find1(t, ops, func(op Op) bool { return op.Kind == Append && op.Partition == 0 && op.Offset == one })
	b := find1(t, ops, func(op Op) bool { return op.Kind == Append && op.Partition == 0 && op.Offset == other })
	a.Offset, b.Offset = other, one
	logs[0][one], logs[0][other] = logs[0][other], logs[0][one]
	for i := range ops { // no reader saw it
		if ops[i].Kind != Append && ops[i].Partition == 0 {
			ops[i].Outcome = Unknown
		}
	}
}

func TestAScheduleIsAFunctionOfItsSeed(t *testing.T) {
	all := make(map[Fault]bool)
	for _, it := range weights {
		all[it.Fault] = true
	}
	first := NewSchedule(7, time.Minute, all)
	if !reflect.DeepEqual(first, NewSchedule(7, time.Minute, all)) {
		t.Fatal("the same seed made two schedules")
	}
	if reflect.DeepEqual(first, NewSchedule(8, time.Minute, all)) {
		t.Fatal("two seeds made one schedule")
	}
	seen := make(map[Fault]bool)
	for seed := range int64(50) {
		for _, step := range NewSchedule(seed, time.Minute, all) {
			seen[step.Fault] = true
			if step.At+step.Length > time.Minute {
				t.Fatalf("%v ends too late", step)
			}
		}
	}
	if len(seen) != len(weights) {
		t.Fatalf("50 seeds have only %v", seen)
	}
}
