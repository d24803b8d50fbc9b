// A member of `groups/`: member BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.
package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	. "duramen/compat/gosuite"
)

func main() {
	leaving := UntilTerminated()
	client := Must(kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[3]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(3*time.Second), kgo.HeartbeatInterval(300*time.Millisecond),
		// It would ask who leads a partition no sooner than five seconds after it asked last.
		kgo.MetadataMinAge(200*time.Millisecond),
		// Partitions do not move while a batch is between its poll and its commit.
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
	))
	for leaving.Err() == nil {
		fetches := client.PollFetches(leaving)
		fetches.EachRecord(func(record *kgo.Record) { Processed(record.Partition, record.Offset, record.Value) })
		// A commit that failed is repeated with the next one; what nobody committed is processed again.
		client.CommitUncommittedOffsets(context.Background())
		client.AllowRebalance()
	}
	client.Close()
}
