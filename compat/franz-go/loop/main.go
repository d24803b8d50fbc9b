// Reads, writes and commits by transactions until its standard input ends: loop BOOTSTRAP SOURCE TARGET GROUP ID. What it
// does and prints is what transactions/test_transactions.py says. As a member of its group, and a static one, so that it comes back at once.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	atOnce = 10
	pause  = 5 * time.Millisecond
)

func main() {
	bootstrap, source, target, group, id := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID(id), kgo.TransactionTimeout(20*time.Second), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(group), kgo.InstanceID(id), kgo.SessionTimeout(20*time.Second), kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.AlwaysRetryEOF(), // a broker that is killed right after it took a connection
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }), kgo.MetadataMinAge(50*time.Millisecond),
	)
	done(err)
	running, stop := context.WithCancel(context.Background())
	go func() {
		io.ReadAll(os.Stdin)
		stop()
	}()
	for count := 0; ; count++ {
		fetches := session.PollRecords(running, atOnce)
		if running.Err() != nil {
			break
		}
		if len(fetches.Records()) == 0 {
			continue
		}
		attempt := fmt.Sprintf("%d.%d", os.Getpid(), count)
		next := int64(0)
		done(session.Begin())
		for _, record := range fetches.Records() {
			for partition := range int32(2) {
				copied := &kgo.Record{Topic: target, Partition: partition, Value: fmt.Appendf(nil, "%s %s", record.Value, attempt)}
				session.Produce(context.Background(), copied, nil)
			}
			next = record.Offset + 1
		}
		// It aborts by itself when a rebalance has come between.
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(rand.Intn(5) > 0))
		done(err)
		if committed {
			fmt.Println("committed", attempt, next)
		} else {
			fmt.Println("aborted", attempt)
		}
		time.Sleep(pause)
	}
	session.Close()
}

func done(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
