// A member of `groups/`: member BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.
package main

import (
	"os"
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
		session.Commit()
	}
	return nil
}

func main() {
	leaving := UntilTerminated()
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 3 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	group := Must(sarama.NewConsumerGroup([]string{os.Args[1]}, os.Args[3], config))
	for leaving.Err() == nil {
		// An error means that the group is to be joined again.
		if group.Consume(leaving, []string{os.Args[2]}, handler{}) != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	group.Close()
}
