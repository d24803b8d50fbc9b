// Consumes as a member of a share group until its standard input ends: share BOOTSTRAP TOPIC GROUP NAME. What it does and
// prints is what shares/test_shares.py says.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	atOnce = 20
	pause  = 5 * time.Millisecond
)

func main() {
	bootstrap, topic, group := os.Args[1], os.Args[2], os.Args[3]
	var told sync.Mutex
	problems := map[int32]error{}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ShareGroup(group), kgo.ConsumeTopics(topic), kgo.ShareMaxRecords(atOnce), kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			told.Lock()
			defer told.Unlock()
			for _, result := range results {
				if result.Err != nil {
					problems[result.Partition] = result.Err
				}
			}
		}),
		kgo.AlwaysRetryEOF(), // a broker that is killed right after it took a connection
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }), kgo.MetadataMinAge(50*time.Millisecond),
		kgo.FetchMaxWait(200*time.Millisecond),
	)
	done(err)
	running, stop := context.WithCancel(context.Background())
	go func() {
		io.ReadAll(os.Stdin)
		stop()
	}()
	for {
		fetches := client.PollRecords(running, atOnce)
		if running.Err() != nil {
			break
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		accepted := make([]bool, len(records))
		for at, record := range records {
			fmt.Println("delivered", record.Partition, record.Offset)
			accepted[at] = rand.Intn(10) > 0
			if accepted[at] {
				record.Ack(kgo.AckAccept)
			} else {
				record.Ack(kgo.AckRelease)
			}
		}
		flushing, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := client.FlushAcks(flushing)
		cancel()
		told.Lock()
		for at, record := range records {
			fate := "accepted"
			if !accepted[at] {
				fate = "released"
			} else if err != nil || problems[record.Partition] != nil {
				fate = "unknown"
			}
			fmt.Println(fate, record.Partition, record.Offset)
		}
		clear(problems)
		told.Unlock()
		time.Sleep(pause)
	}
	client.Close()
}

func done(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
