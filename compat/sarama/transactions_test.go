package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/IBM/sarama"

	. "duramen/compat/gosuite"
)

func Test_what_is_committed_is_seen_and_what_is_aborted_is_not_in_every_protocol_version(t *testing.T) {
	Run(t, commitsAndAborts)
}
func Test_a_second_producer_of_the_same_id_fences_the_first(t *testing.T) { Run(t, fencing) }
func Test_offsets_are_committed_with_the_records(t *testing.T)            { Run(t, offsetsWithRecords) }

func transactional(id string, changes ...settings) sarama.SyncProducer {
	return Must(sarama.NewSyncProducer([]string{Bootstrap()}, config(append([]settings{func(c *sarama.Config) {
		c.Producer.Idempotent, c.Net.MaxOpenRequests = true, 1
		c.Producer.Transaction.ID = id
		c.Producer.Transaction.Retry.Max, c.Producer.Transaction.Retry.Backoff = 100, 20*time.Millisecond
	}}, changes...)...)))
}

func readCommitted(c *sarama.Config) { c.Consumer.IsolationLevel = sarama.ReadCommitted }

func end(producer sarama.SyncProducer, commits bool) error {
	if commits {
		return producer.CommitTxn()
	}
	return producer.AbortTxn()
}

// seenCommitted are the values before one that is written last, which shows that there are no more.
func seenCommitted(ctx context.Context, topic string, changes ...settings) (values []string) {
	Done(produce([]*sarama.ProducerMessage{message(topic, "end")}, changes...))
	consumer := Must(sarama.NewConsumer([]string{Bootstrap()}, config(append(changes, readCommitted)...)))
	defer consumer.Close()
	partition := Must(consumer.ConsumePartition(topic, 0, sarama.OffsetOldest))
	defer partition.Close()
	for {
		select {
		case got := <-partition.Messages():
			if string(got.Value) == "end" {
				return values
			}
			values = append(values, string(got.Value))
		case <-ctx.Done():
			panic(fmt.Sprintf("%d records arrived", len(values)))
		}
	}
}

func equal(got, expected []string, what any) {
	Check(slices.Equal(got, expected), "%v: expected %v, got %v", what, expected, got)
}

func commitsAndAborts(ctx context.Context) {
	AtOnce(versions, func(v sarama.KafkaVersion) {
		topic := newTopic(1)
		producer := transactional(Unique("transactional"), version(v))
		var committed []string
		for number := range 6 {
			commits := number%3 != 1
			Done(producer.BeginTxn())
			for part := range 10 {
				value := fmt.Sprintf("%d.%d", number, part)
				Done(producer.SendMessages([]*sarama.ProducerMessage{message(topic, value)}))
				if commits {
					committed = append(committed, value)
				}
			}
			Done(end(producer, commits))
		}
		Done(producer.Close())
		equal(seenCommitted(ctx, topic, version(v)), committed, v)
	})
}

func fencing(ctx context.Context) {
	topic, id := newTopic(1), Unique("transactional")
	first := transactional(id)
	Done(first.BeginTxn())
	Done(first.SendMessages([]*sarama.ProducerMessage{message(topic, "of the first")}))
	second := transactional(id)
	Done(second.BeginTxn())
	Done(second.SendMessages([]*sarama.ProducerMessage{message(topic, "of the second")}))
	Done(second.CommitTxn())
	err := first.CommitTxn()
	isFenced := errors.Is(err, sarama.ErrProducerFenced) || errors.Is(err, sarama.ErrInvalidProducerEpoch)
	Check(isFenced && first.TxnStatus()&sarama.ProducerTxnFlagFatalError != 0, "it was not fenced: %v", err)
	first.Close()
	Done(second.Close())
	equal(seenCommitted(ctx, topic), []string{"of the second"}, "values")
}

func offsetsWithRecords(ctx context.Context) {
	AtOnce(versions, func(v sarama.KafkaVersion) {
		from, to, group := newTopic(1), newTopic(1), Unique("loop")
		Done(produce(numbered(from, 30), version(v)))
		producer := transactional(Unique("loop"), version(v))
		withAdmin(func(admin sarama.ClusterAdmin) {
			for _, turn := range []struct {
				begin   int
				commits bool
			}{{0, true}, {10, false}, {10, true}, {20, true}} {
				Done(producer.BeginTxn())
				for _, got := range consume(ctx, from, 10, int64(turn.begin), version(v)) {
					Done(producer.SendMessages([]*sarama.ProducerMessage{message(to, string(got.Value))}))
				}
				next := turn.begin + 10
				offsets := map[string][]*sarama.PartitionOffsetMetadata{from: {{Partition: 0, Offset: int64(next)}}}
				Done(producer.AddOffsetsToTxn(offsets, group))
				Done(end(producer, turn.commits))
				expected := next
				if !turn.commits {
					expected = turn.begin
				}
				Until(ctx, strconv.Itoa(expected)+" is committed", func() bool {
					block := Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{from: {0}})).GetBlock(from, 0)
					return block.Err == sarama.ErrNoError && block.Offset == int64(expected)
				})
			}
		})
		Done(producer.Close())
		var all []string
		for number := range 30 {
			all = append(all, strconv.Itoa(number))
		}
		equal(seenCommitted(ctx, to, version(v)), all, v)
	})
}
