// A member of `groups/`: member BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.
package main

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	. "duramen/compat/gosuite"
)

func main() {
	leaving := UntilTerminated()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(os.Args[1], ","), Topic: os.Args[2], GroupID: os.Args[3], StartOffset: kafka.FirstOffset,
		SessionTimeout: 3 * time.Second, HeartbeatInterval: 300 * time.Millisecond, RebalanceTimeout: 5 * time.Second,
		JoinGroupBackoff: 200 * time.Millisecond, MaxWait: 500 * time.Millisecond,
	})
	for {
		got, err := reader.FetchMessage(leaving)
		if leaving.Err() != nil {
			break
		}
		if err != nil {
			// The reader goes on by itself, for instance with looking for the coordinator.
			continue
		}
		// The reader hands out control batches, too: of transactions, and those of Duramen about queues. No key of a test begins so.
		if !strings.HasPrefix(string(got.Key), "\x00\x00") {
			Processed(int32(got.Partition), got.Offset, got.Value)
		}
		// What could not be committed is processed again by whoever has the partition now.
		reader.CommitMessages(context.Background(), got)
	}
	reader.Close()
}
