// A member of `groups/`: member BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.
package main

import (
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"

	. "duramen/compat/gosuite"
)

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for got := range claim.Messages() {
		Processed(got.Partition, got.Offset, got.Value)
		session.MarkMessage(got, "")
	}
	return nil
}

func main() {
	leaving := UntilTerminated()
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	// Not after each record, by Session.Commit: Sarama has one connection to a broker, on which its fetch waits for records, and
	// answers come in the order of requests. Where the coordinator leads one of the partitions, such a member processes about one
	// record of each in the time that a fetch waits, of all that it has fetched (../FINDINGS.md).
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 3 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	group := Must(sarama.NewConsumerGroup(strings.Split(os.Args[1], ","), os.Args[3], config))
	for leaving.Err() == nil {
		// An error means that the group is to be joined again.
		if group.Consume(leaving, []string{os.Args[2]}, handler{}) != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	group.Close()
}
