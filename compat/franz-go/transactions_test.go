package suite

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	. "duramen/compat/gosuite"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

func Test_what_is_committed_is_seen_and_what_is_aborted_is_not_in_both_versions_of_the_protocol(t *testing.T) {
	Run(t, commitsAndAborts)
}
func Test_a_second_producer_of_the_same_id_fences_the_first(t *testing.T) { Run(t, fencing) }
func Test_members_of_a_group_process_each_record_once(t *testing.T)       { Long(t, processedOnce) }
func Test_an_open_transaction_holds_up_readers_and_is_seen_by_an_admin(t *testing.T) {
	Long(t, openTransaction)
}

func transactional(id string, options ...kgo.Opt) *kgo.Client {
	return client(append([]kgo.Opt{
		kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(3),
	}, options...)...)
}

// seen reads all of partition 0 up to the end that is there now. A transaction is complete, and can be read, a moment after its
// end was answered: what is committed is waited for.
func seen(ctx context.Context, topic string, isolation kgo.IsolationLevel) (values []string) {
	admin := admin()
	defer admin.Close()
	end, _ := Must(admin.ListEndOffsets(ctx, topic)).Lookup(topic, 0)
	// A record of our own behind the end shows that all before it has been read.
	mustProduce(ctx, []*kgo.Record{message(topic, "end")})
	reader := assigned(topic, 1, kgo.NewOffset().AtStart(), kgo.FetchIsolationLevel(isolation))
	defer reader.Close()
	for {
		fetches := reader.PollFetches(ctx)
		Done(fetches.Err())
		for _, record := range fetches.Records() {
			if record.Offset >= end.Offset {
				return values
			}
			values = append(values, string(record.Value))
		}
	}
}

func transaction(ctx context.Context, producer *kgo.Client, commits kgo.TransactionEndTry, records ...*kgo.Record) error {
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return producer.EndTransaction(ctx, commits)
}

func commitsAndAborts(ctx context.Context) {
	// Clients of before 4.0 know the first version of the protocol only.
	for name, versions := range map[string]*kversion.Versions{"newest": kversion.Stable(), "3.9": kversion.V3_9_0()} {
		topic := newTopic(ctx, 1)
		producer := transactional(Unique("transactional"), kgo.MaxVersions(versions))
		var committed, all []string
		for number := range 6 {
			commits := number%3 != 1
			records := numbered(topic, 10)
			for _, record := range records {
				record.Value = fmt.Appendf(nil, "%d.%s", number, record.Value)
				all = append(all, string(record.Value))
				if commits {
					committed = append(committed, string(record.Value))
				}
			}
			Done(transaction(ctx, producer, kgo.TransactionEndTry(commits), records...))
		}
		producer.Close()
		equal(seen(ctx, topic, kgo.ReadCommitted()), committed, name)
		Check(len(seen(ctx, topic, kgo.ReadUncommitted())) >= len(all), "%s: some of what was written is not seen", name)
	}
}

func fencing(ctx context.Context) {
	topic, id := newTopic(ctx, 1), Unique("transactional")
	first, second := transactional(id), transactional(id)
	defer first.Close()
	defer second.Close()
	Done(first.BeginTransaction())
	Done(first.ProduceSync(ctx, message(topic, "of the first")).FirstErr())
	Done(transaction(ctx, second, kgo.TryCommit, message(topic, "of the second")))
	err := first.EndTransaction(ctx, kgo.TryCommit)
	Check(err == kerr.ProducerFenced || err == kerr.InvalidProducerEpoch, "it was not fenced: %v", err)
	equal(seen(ctx, topic, kgo.ReadCommitted()), []string{"of the second"}, "values")
}

func processedOnce(ctx context.Context) {
	const count, partitions = 1000, 4
	from, to, group := newTopic(ctx, partitions), newTopic(ctx, 1), Unique("loop")
	records := numbered(from, count)
	for i, record := range records {
		record.Partition = int32(i % partitions)
	}
	mustProduce(ctx, records)
	looping, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loop := func(number int, turns int) {
		session := Must(kgo.NewGroupTransactSession(append(login(),
			kgo.SeedBrokers(Bootstrap()), kgo.TransactionalID(group+"-"+strconv.Itoa(number)), kgo.MetadataMinAge(20*time.Millisecond),
			kgo.ConsumerGroup(group), kgo.ConsumeTopics(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
			kgo.HeartbeatInterval(100*time.Millisecond), kgo.FetchMaxWait(100*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		)...))
		defer session.Close()
		for turn := 0; turn < turns && looping.Err() == nil; turn++ {
			fetches := session.PollRecords(looping, 20)
			if looping.Err() != nil {
				return
			}
			Done(fetches.Err())
			Done(session.Begin())
			for _, record := range fetches.Records() {
				session.Produce(ctx, message(to, string(record.Value)), nil)
			}
			// Every fourth is aborted, and read again.
			Must(session.End(ctx, kgo.TransactionEndTry(turn%4 != 3)))
		}
	}
	// The first one leaves early, and the others go on.
	for number, turns := range []int{10, 1_000_000, 1_000_000} {
		loops.Go(func() { loop(number, turns) })
	}
	reader := assigned(to, 1, kgo.NewOffset().AtStart(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	counts := map[string]int{}
	for read := 0; read < count; {
		fetches := reader.PollFetches(ctx)
		Done(fetches.Err())
		for _, record := range fetches.Records() {
			counts[string(record.Value)]++
			read++
		}
	}
	stop()
	loops.Wait()
	Check(len(counts) == count, "%d of %d records, some more than once", len(counts), count)
	Check(len(seen(ctx, to, kgo.ReadCommitted())) == count, "more came later")
}

func openTransaction(ctx context.Context) {
	topic, id := newTopic(ctx, 1), Unique("transactional")
	producer, admin := transactional(id), admin()
	defer producer.Close()
	defer admin.Close()
	Done(producer.BeginTransaction())
	Done(producer.ProduceSync(ctx, message(topic, "open")).FirstErr())
	stable, _ := Must(admin.ListCommittedOffsets(ctx, topic)).Lookup(topic, 0)
	Check(stable.Offset == 0, "the last stable offset is %d", stable.Offset)
	described := Must(Must(admin.DescribeTransactions(ctx, id)).On(id, nil))
	Check(described.State == "Ongoing" && described.Topics.Lookup(topic, 0), "described as %v", described)
	_, isListed := Must(admin.ListTransactions(ctx, nil, []string{"Ongoing"}))[id]
	Check(isListed, "it is not listed")
	var all kadm.TopicsSet
	all.Add(topic, 0)
	producers := Must(admin.DescribeProducers(ctx, all))
	Check(producers[topic].Partitions[0].ActiveProducers.Sorted()[0].CurrentTxnStartOffset == 0, "described as %v", producers)
	Done(producer.EndTransaction(ctx, kgo.TryCommit))
	Until(ctx, "the transaction is complete", func() bool {
		described := Must(Must(admin.DescribeTransactions(ctx, id)).On(id, nil))
		return described.State == "CompleteCommit"
	})
	equal(seen(ctx, topic, kgo.ReadCommitted()), []string{"open"}, "values")
}

func equal(got, expected []string, what string) {
	Check(fmt.Sprint(got) == fmt.Sprint(expected), "%s: expected %v, got %v", what, expected, got)
}
