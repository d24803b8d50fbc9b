package main

import (
	"fmt"
	"math/rand"
	"time"
)

// A fault that begins, stays and ends.
type Step struct {
	At, Length time.Duration
	Fault      Fault
	Victim     Victim
	// Cuts between two nodes: the other one, counted on from the victim, 1 or 2.
	Beyond int
	// Slow: the delay. Killed: how long until the process is started again, and killed again in its recovery, if at all.
	Delay time.Duration
	// Full: bytes that are left.
	Left int64
}

// A node by its number, or whoever leads a partition when the step begins.
type Victim struct {
	Node     int
	LeaderOf int32
}

func (v Victim) String() string {
	if v.Node > 0 {
		return fmt.Sprintf("node %d", v.Node)
	}
	return fmt.Sprintf("the leader of partition %d", v.LeaderOf)
}

type Fault string

const (
	Kill       Fault = "kill"         // SIGKILL, and started again at the end
	KillTwice  Fault = "kill twice"   // once more in the middle of its recovery
	KillAll    Fault = "kill all"     // all nodes at once
	Stop       Fault = "stop"         // SIGTERM, and started again at the end
	Freeze     Fault = "freeze"       // SIGSTOP, SIGCONT at the end
	Isolate    Fault = "isolate"      // from the other nodes; clients still reach it
	Vanish     Fault = "vanish"       // from the other nodes and from clients
	Cut        Fault = "cut"          // between two nodes, both ways; the third reaches both
	Mute       Fault = "mute"         // no other node hears it; it hears all
	Deaf       Fault = "deaf"         // it hears no other node; all hear it
	OneWay     Fault = "one way"      // packets to one other node are dropped, acknowledgements of its own among them
	Slow       Fault = "slow"         // all it sends to other nodes, and is sent, is late
	Lossy      Fault = "lossy"        // packets between nodes are lost, one in ten
	Full       Fault = "full"         // its disk
	KillOnFull Fault = "kill on full" // killed while its disk is full, started again on it
	Wipe       Fault = "wipe"         // killed, and started again with an empty disk
)

// How often each comes, relative to the others.
var weights = []struct {
	Fault
	weight int
}{
	{Kill, 4}, {KillTwice, 2}, {KillAll, 1}, {Stop, 2}, {Freeze, 4}, {Isolate, 3}, {Vanish, 3}, {Cut, 2}, {Mute, 2}, {Deaf, 2},
	{OneWay, 2}, {Slow, 2}, {Lossy, 2}, {Full, 2}, {KillOnFull, 1}, {Wipe, 2},
}

// NewSchedule makes steps for so long. It is a function of its arguments. Most of the time a majority is well, so that
// there is something to lose; sometimes it is not.
func NewSchedule(seed int64, length time.Duration, faults map[Fault]bool) []Step {
	chance := rand.New(rand.NewSource(seed))
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(chance.Int63n(int64(to-from))) }
	var steps []Step
	for at := between(500*time.Millisecond, 2*time.Second); ; {
		last := at
		count := 1
		if chance.Intn(4) == 0 {
			count = 2 // whoever it hits, the same node or another
		}
		for range count {
			step := Step{At: at + between(0, 500*time.Millisecond), Fault: pick(chance, faults), Beyond: 1 + chance.Intn(nodes-1)}
			step.Length = between(300*time.Millisecond, 6*time.Second)
			step.Delay = between(10*time.Millisecond, 250*time.Millisecond)
			step.Left = chance.Int63n(2) * (64 << 20)
			if chance.Intn(2) == 0 {
				step.Victim.LeaderOf = int32(chance.Intn(partitions))
			} else {
				step.Victim.Node = 1 + chance.Intn(nodes)
			}
			if end := step.At + step.Length; end > length {
				return steps
			} else if end > last {
				last = end
			}
			steps = append(steps, step)
		}
		at = last + between(0, 2500*time.Millisecond)
	}
}

func pick(chance *rand.Rand, faults map[Fault]bool) Fault {
	sum := 0
	for _, it := range weights {
		if faults[it.Fault] {
			sum += it.weight
		}
	}
	left := chance.Intn(sum)
	for _, it := range weights {
		if faults[it.Fault] {
			if left < it.weight {
				return it.Fault
			}
			left -= it.weight
		}
	}
	panic("no fault is left")
}
