package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	groupName = "chaos-group"
	members   = 2
	// From when all faults are over, and all is read, to when the group has read it, too.
	groupWithin = 45 * time.Second
)

// Group is a consumer group that reads all partitions and commits what it has read. Of each record it knows whether some
// member got it.
type Group struct {
	mutex sync.Mutex
	got   map[int32][]bool
	over  context.CancelFunc
	all   sync.WaitGroup
}

func StartGroup(bootstrap []string) (*Group, error) {
	context, cancel := context.WithCancel(context.Background())
	g := &Group{got: make(map[int32][]bool), over: cancel}
	for range members {
		client, err := newClient(bootstrap, kgo.ConsumerGroup(groupName), kgo.ConsumeTopics(topic), kgo.AlwaysRetryEOF(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond),
			kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
			// Partitions do not move while a batch is between its poll and its commit.
			kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
		if err != nil {
			cancel()
			return nil, err
		}
		g.all.Add(1)
		go g.consume(context, client)
	}
	return g, nil
}

func (g *Group) consume(ctx context.Context, client *kgo.Client) {
	defer g.all.Done()
	defer client.Close()
	for ctx.Err() == nil {
		// Errors say why nothing comes now; whether something comes in the end is what is judged.
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { g.note(record.Partition, record.Offset) })
		// A commit that failed is repeated with the next one.
		patience, cancel := context.WithTimeout(ctx, 5*time.Second)
		client.CommitUncommittedOffsets(patience)
		cancel()
		client.AllowRebalance()
	}
}

func (g *Group) note(partition int32, offset int64) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for int64(len(g.got[partition])) <= offset {
		g.got[partition] = append(g.got[partition], false)
	}
	g.got[partition][offset] = true
}

// Finish waits until the group has got all that the logs hold, and says what it lacks if it never does: a group that
// stands still, or one that was told of a commit further on than any of its members had read.
func (g *Group) Finish(logs map[int32]Log) (wrong []string) {
	began := time.Now()
	for time.Since(began) < groupWithin {
		if wrong = g.lacks(logs); len(wrong) == 0 {
			fmt.Printf("the group had all %s later\n", time.Since(began).Round(10*time.Millisecond))
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	g.over()
	g.all.Wait()
	return wrong
}

func (g *Group) lacks(logs map[int32]Log) (lacks []string) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	for partition, log := range logs {
		missing, first := 0, -1
		for offset := range log {
			if offset >= len(g.got[partition]) || !g.got[partition][offset] {
				if missing++; first < 0 {
					first = offset
				}
			}
		}
		if missing > 0 {
			lacks = append(lacks, fmt.Sprintf("partition %d: the group never got %d of %d records, from offset %d on, within %s after all faults",
				partition, missing, len(log), first, groupWithin))
		}
	}
	return lacks
}
