// The Sarama client against one broker.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	. "duramen/compat/gosuite"
	"duramen/compat/sarama/passwords"
)

const mib = 1 << 20

func init() { sarama.Logger = log.New(io.Discard, "", 0) }

func Test_older_protocol_versions_are_refused(t *testing.T) { Run(t, versionsTooOld) }
func Test_keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec(t *testing.T) {
	Run(t, everyCodec)
}
func Test_null_and_empty_keys_and_values_stay_apart(t *testing.T)               { Run(t, nullsAndEmpties) }
func Test_a_log_append_time_topic_stamps_records_itself(t *testing.T)           { Run(t, logAppendTime) }
func Test_every_acks_setting_delivers(t *testing.T)                             { Run(t, everyAcks) }
func Test_an_idempotent_producer_keeps_order(t *testing.T)                      { Run(t, idempotentOrder) }
func Test_a_record_of_11_mb_goes_through_when_the_topic_allows_it(t *testing.T) { Run(t, largeRecord) }
func Test_refused_records_say_why(t *testing.T)                                 { Run(t, refusedRecords) }
func Test_offsets_are_found_by_timestamp(t *testing.T)                          { Run(t, offsetsByTimestamp) }
func Test_many_partitions_are_read_by_one_consumer(t *testing.T)                { Run(t, manyPartitions) }
func Test_a_waiting_consumer_gets_a_record_at_once(t *testing.T)                { Run(t, waitingConsumer) }
func Test_topics_are_deleted_and_recreated_with_no_old_data(t *testing.T)       { Run(t, recreation) }
func Test_bad_topics_are_refused_by_code(t *testing.T)                          { Run(t, badTopics) }
func Test_an_unknown_topic_is_created_only_where_the_broker_allows_that(t *testing.T) {
	Run(t, autoCreation)
}
func Test_deleted_records_are_out_of_range(t *testing.T) { Run(t, deletedRecords) }

// What the tests are made of.

type settings = func(*sarama.Config)

func config(changes ...settings) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewManualPartitioner
	// A broker of Kafka's knows a new topic, and that it leads it, some time after its creation was answered.
	c.Producer.Retry.Max = 40
	c.Producer.Retry.Backoff = 50 * time.Millisecond
	c.Consumer.MaxWaitTime = 100 * time.Millisecond
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	for _, change := range changes {
		change(c)
	}
	if User != "" {
		passwords.LogIn(c, Trusting(), User, Password)
	}
	return c
}

func version(v sarama.KafkaVersion) settings {
	return func(c *sarama.Config) { c.Version = v }
}

func withAdmin(use func(sarama.ClusterAdmin), changes ...settings) {
	admin := Must(sarama.NewClusterAdmin([]string{Bootstrap()}, config(changes...)))
	defer admin.Close()
	use(admin)
}

func create(name string, partitions int32, replicas int16, configs ...string) (err error) {
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: replicas, ConfigEntries: map[string]*string{}}
	for i := 0; i < len(configs); i += 2 {
		detail.ConfigEntries[configs[i]] = &configs[i+1]
	}
	withAdmin(func(admin sarama.ClusterAdmin) { err = admin.CreateTopic(name, detail, false) })
	return err
}

func newTopic(partitions int32, configs ...string) string {
	name := Unique("sarama")
	Done(create(name, partitions, int16(Brokers()), configs...))
	return name
}

func message(topic, value string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
}

func numbered(topic string, count int) []*sarama.ProducerMessage {
	messages := make([]*sarama.ProducerMessage, count)
	for i := range messages {
		messages[i] = message(topic, strconv.Itoa(i))
	}
	return messages
}

// produce returns the first error that the broker answered; the client fills in the offsets.
func produce(messages []*sarama.ProducerMessage, changes ...settings) error {
	client := Must(sarama.NewClient([]string{Bootstrap()}, config(changes...)))
	defer client.Close()
	// Connected before two partitions ask for the same broker, of which one could close what the other one has sent a batch by:
	// without idempotence that is there twice then (../FINDINGS.md).
	for _, broker := range client.Brokers() {
		Done(broker.Open(client.Config()))
		Must(broker.Connected())
	}
	producer := Must(sarama.NewSyncProducerFromClient(client))
	defer producer.Close()
	err := producer.SendMessages(messages)
	if all, ok := errors.AsType[sarama.ProducerErrors](err); ok {
		return all[0].Err
	}
	return err
}

// consume reads `count` records of partition 0 from an offset on.
func consume(ctx context.Context, topic string, count int, offset int64, changes ...settings) []*sarama.ConsumerMessage {
	consumer := Must(sarama.NewConsumer([]string{Bootstrap()}, config(changes...)))
	defer consumer.Close()
	partition := Must(consumer.ConsumePartition(topic, 0, offset))
	defer partition.Close()
	var found []*sarama.ConsumerMessage
	for len(found) < count {
		select {
		case got := <-partition.Messages():
			found = append(found, got)
		case <-ctx.Done():
			panic(fmt.Sprintf("%d of %d records arrived", len(found), count))
		}
	}
	return found
}

func equalValues(got []*sarama.ConsumerMessage, sent []*sarama.ProducerMessage) {
	Check(len(got) == len(sent), "expected %d records, got %d", len(sent), len(got))
	for i := range sent {
		value := Must(sent[i].Value.Encode())
		Check(bytes.Equal(got[i].Value, value), "record %d: expected %q, got %q", i, value, got[i].Value)
	}
}

// The tests.

// The versions at which Sarama's requests change most, the default (2.8) and the newest.
var versions = []sarama.KafkaVersion{
	sarama.V0_11_0_0, sarama.V1_0_0_0, sarama.V1_1_0_0, sarama.V2_0_0_0, sarama.V2_1_0_0, sarama.V2_4_0_0, sarama.DefaultVersion,
	sarama.V3_0_0_0, sarama.V3_9_0_0, sarama.MaxVersion,
}

func everyVersion(ctx context.Context) {
	AtOnce(versions, func(v sarama.KafkaVersion) {
		topic, group := Unique("sarama"), Unique("sarama-group")
		withAdmin(func(admin sarama.ClusterAdmin) {
			Done(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1}, false))
			sent := numbered(topic, 40)
			for i, one := range sent {
				one.Partition, one.Timestamp = int32(i%4), time.UnixMilli(int64(1000+i))
				one.Headers = []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("x")}}
			}
			Done(produce(sent, version(v)))
			for i, got := range consume(ctx, topic, 10, 0, version(v)) {
				Check(string(got.Value) == strconv.Itoa(4*i) && got.Timestamp.UnixMilli() == int64(1000+4*i), "%v: %v", v, got)
				Check(len(got.Headers) == 1 && string(got.Headers[0].Key) == "h", "%v: headers %v", v, got.Headers)
			}
			client := Must(sarama.NewClient([]string{Bootstrap()}, config(version(v))))
			defer client.Close()
			Check(Must(client.GetOffset(topic, 0, 1017)) == 5, "%v: by timestamp", v)
			Check(Must(client.GetOffset(topic, 0, sarama.OffsetNewest)) == 10, "%v: the end", v)

			first := join(group, topic, version(v))
			first.allConsumed(ctx, 40)
			first.leave()
			Done(produce(numbered(topic, 3), version(v)))
			second := join(group, topic, version(v))
			second.allConsumed(ctx, 3)
			second.leave()
			Check(Must(admin.ListConsumerGroups())[group] == "consumer", "%v: the group is listed", v)
			committed := Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}})).GetBlock(topic, 0)
			Check(committed.Err == sarama.ErrNoError && committed.Offset == 13, "%v: %+v", v, committed)
			if v.IsAtLeast(sarama.V1_1_0_0) {
				Done(admin.DeleteConsumerGroup(group))
			}
			Done(admin.DeleteTopic(topic))
		}, version(v))
	})
}

// 0.10.2 produces with version 2, which Kafka 4 has not any more: it closes the connection.
func versionsTooOld(ctx context.Context) {
	once := func(c *sarama.Config) { c.Producer.Retry.Max = 0 }
	for _, v := range []sarama.KafkaVersion{sarama.V0_10_2_0, sarama.V0_9_0_0} {
		Refused(produce([]*sarama.ProducerMessage{message(newTopic(1), "v")}, version(v), once), io.EOF)
	}
}

func everyCodec(ctx context.Context) {
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	for _, codec := range codecs {
		topic := newTopic(1)
		var sent []*sarama.ProducerMessage
		for i := range 500 {
			sent = append(sent, &sarama.ProducerMessage{
				Topic: topic, Key: sarama.StringEncoder(fmt.Sprint("key-", i)),
				Value: sarama.StringEncoder(strings.Repeat(fmt.Sprint("value-", i, " "), 50)),
				Headers: []sarama.RecordHeader{
					{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: []byte{}}, {Key: []byte("null")},
				},
				Timestamp: time.UnixMilli(1_600_000_000_000 + int64(i)),
			})
		}
		Done(produce(sent, func(c *sarama.Config) { c.Producer.Compression = codec }))
		found := consume(ctx, topic, 500, 0)
		equalValues(found, sent)
		for i, got := range found {
			Check(got.Offset == int64(i) && sent[i].Offset == int64(i), "%v: offset %d and %d at %d", codec, got.Offset, sent[i].Offset, i)
			Check(string(got.Key) == fmt.Sprint("key-", i), "%v: key %q", codec, got.Key)
			Check(got.Timestamp.Equal(sent[i].Timestamp), "%v: timestamp %v", codec, got.Timestamp)
			Check(len(got.Headers) == 3 && string(got.Headers[0].Value) == "1" && got.Headers[2].Value == nil, "%v: headers %v", codec, got.Headers)
		}
	}
}

func nullsAndEmpties(ctx context.Context) {
	topic := newTopic(1)
	pairs := [][2]sarama.Encoder{
		{nil, sarama.StringEncoder("v")}, {sarama.StringEncoder("k"), nil}, {nil, nil},
		{sarama.ByteEncoder{}, sarama.ByteEncoder{}}, {sarama.StringEncoder("k"), sarama.ByteEncoder{}},
	}
	var sent []*sarama.ProducerMessage
	for _, pair := range pairs {
		sent = append(sent, &sarama.ProducerMessage{Topic: topic, Key: pair[0], Value: pair[1]})
	}
	Done(produce(sent))
	for i, got := range consume(ctx, topic, len(pairs), 0) {
		Check((got.Key == nil) == (pairs[i][0] == nil) && (got.Value == nil) == (pairs[i][1] == nil), "pair %d: %v", i, got)
	}
}

func logAppendTime(ctx context.Context) {
	topic := newTopic(1, "message.timestamp.type", "LogAppendTime")
	before := time.Now().Truncate(time.Millisecond)
	sent := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("v"), Timestamp: time.UnixMilli(1000)}
	Done(produce([]*sarama.ProducerMessage{sent}))
	Check(!sent.Timestamp.Before(before) && !sent.Timestamp.After(time.Now()), "answered %v", sent.Timestamp)
	got := consume(ctx, topic, 1, 0)[0]
	Check(got.Timestamp.Equal(sent.Timestamp), "answered %v, stamped %v", sent.Timestamp, got.Timestamp)
}

func everyAcks(ctx context.Context) {
	for _, acks := range []sarama.RequiredAcks{sarama.NoResponse, sarama.WaitForLocal, sarama.WaitForAll} {
		topic := newTopic(1)
		sent := numbered(topic, 200)
		Done(produce(sent, func(c *sarama.Config) { c.Producer.RequiredAcks = acks }))
		equalValues(consume(ctx, topic, 200, 0), sent)
		Check(acks == sarama.NoResponse || sent[199].Offset == 199, "acks %d: offset %d", acks, sent[199].Offset)
	}
}

func idempotentOrder(ctx context.Context) {
	topic := newTopic(1)
	sent := numbered(topic, 10_000)
	Done(produce(sent, func(c *sarama.Config) {
		c.Producer.Idempotent, c.Net.MaxOpenRequests, c.Producer.Flush.MaxMessages = true, 1, 20
	}))
	equalValues(consume(ctx, topic, len(sent), 0), sent)
}

func largeRecord(ctx context.Context) {
	topic := newTopic(1, "max.message.bytes", strconv.Itoa(11*mib))
	value := make([]byte, 11*mib-1000)
	for i := range value {
		value[i] = byte(i * 31 >> 3)
	}
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionZSTD} {
		sent := &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(value)}
		Done(produce([]*sarama.ProducerMessage{sent}, func(c *sarama.Config) {
			c.Producer.MaxMessageBytes, c.Producer.Compression = 12*mib, codec
		}))
	}
	for _, got := range consume(ctx, topic, 2, 0) {
		Check(bytes.Equal(got.Value, value), "the content differs")
	}
}

func refusedRecords(ctx context.Context) {
	topic := newTopic(1, "max.message.bytes", "2000")
	sent := []*sarama.ProducerMessage{message(topic, "before"), message(topic, "after")}
	Done(produce(sent[:1]))
	Refused(produce([]*sarama.ProducerMessage{message(topic, strings.Repeat("x", 5000))}), sarama.ErrMessageSizeTooLarge)
	Done(produce(sent[1:]))
	equalValues(consume(ctx, topic, 2, 0), sent)

	compacted := newTopic(1, "cleanup.policy", "compact")
	Refused(produce([]*sarama.ProducerMessage{message(compacted, "v")}), sarama.ErrInvalidRecord)
	ahead := message(newTopic(1), "v")
	ahead.Timestamp = time.Now().Add(48 * time.Hour)
	Refused(produce([]*sarama.ProducerMessage{ahead}), sarama.ErrInvalidTimestamp)
}

func offsetsByTimestamp(ctx context.Context) {
	topic := newTopic(1)
	sent := numbered(topic, 100)
	for i, one := range sent {
		one.Timestamp = time.UnixMilli(10_000 + 10*int64(i))
	}
	Done(produce(sent))
	withAdmin(func(admin sarama.ClusterAdmin) {
		ask := func(at int64) *sarama.OffsetResult {
			return Must(admin.ListOffsets(map[string]map[int32]int64{topic: {0: at}}, nil))[topic][0]
		}
		for asked, offset := range map[int64]int64{0: 0, 10_000: 0, 10_001: 1, 10_495: 50, 10_990: 99} {
			found := ask(asked)
			Check(found.Err == sarama.ErrNoError && found.Offset == offset && found.Timestamp == 10_000+10*offset, "timestamp %d: %+v", asked, found)
		}
		Check(ask(10_991).Offset == -1, "behind the last: %+v", ask(10_991))
		Check(ask(sarama.OffsetOldest).Offset == 0 && ask(sarama.OffsetNewest).Offset == 100, "the ends")
	})
}

func manyPartitions(ctx context.Context) {
	const partitions, each = 60, 50
	topic := newTopic(partitions)
	sent := numbered(topic, partitions*each)
	for i, one := range sent {
		one.Partition = int32(i % partitions)
	}
	Done(produce(sent))
	consumer := Must(sarama.NewConsumer([]string{Bootstrap()}, config()))
	defer consumer.Close()
	var readers []sarama.PartitionConsumer
	for partition := range int32(partitions) {
		readers = append(readers, Must(consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)))
	}
	for partition, reader := range readers {
		for next := range each {
			select {
			case got := <-reader.Messages():
				expected := strconv.Itoa(next*partitions + partition)
				Check(string(got.Value) == expected, "partition %d: expected %s, got %s", partition, expected, got.Value)
			case <-ctx.Done():
				panic("no record")
			}
		}
		reader.AsyncClose()
	}
}

func waitingConsumer(ctx context.Context) {
	topic := newTopic(1)
	consumer := Must(sarama.NewConsumer([]string{Bootstrap()}, config(func(c *sarama.Config) { c.Consumer.MaxWaitTime = 5 * time.Second })))
	defer consumer.Close()
	reader := Must(consumer.ConsumePartition(topic, 0, sarama.OffsetNewest))
	time.Sleep(500 * time.Millisecond)
	producer := Must(sarama.NewSyncProducer([]string{Bootstrap()}, config()))
	defer producer.Close()
	for range 3 {
		_, _, err := producer.SendMessage(message(topic, "now"))
		Done(err)
		acknowledged := time.Now()
		<-reader.Messages()
		Check(time.Since(acknowledged) < 500*time.Millisecond, "woke %v after the acknowledgement", time.Since(acknowledged))
	}
	reader.AsyncClose()
}

func recreation(ctx context.Context) {
	topic := Unique("sarama-again")
	for generation := range 3 {
		Done(create(topic, 2, int16(Brokers())))
		sent := message(topic, fmt.Sprint("generation ", generation))
		Done(produce([]*sarama.ProducerMessage{sent}))
		Check(sent.Offset == 0, "the first offset is %d", sent.Offset)
		equalValues(consume(ctx, topic, 1, 0), []*sarama.ProducerMessage{sent})
		withAdmin(func(admin sarama.ClusterAdmin) {
			Done(admin.DeleteTopic(topic))
			Until(ctx, "the topic is gone", func() bool {
				_, there := Must(admin.ListTopics())[topic]
				return !there
			})
		})
	}
}

func badTopics(ctx context.Context) {
	name := Unique("sarama-bad")
	Refused(create("bad name", 1, 1), sarama.ErrInvalidTopic)
	Refused(create(name, 0, 1), sarama.ErrInvalidPartitions)
	Refused(create(name, 1, 9), sarama.ErrInvalidReplicationFactor)
	Refused(create(name, 1, 1, "retention.ms", "soon"), sarama.ErrInvalidConfig)
	Refused(create(name, 1, 1, "no.such.setting", "1"), sarama.ErrInvalidConfig)
	Refused(create(newTopic(1), 1, 1), sarama.ErrTopicAlreadyExists)
	withAdmin(func(admin sarama.ClusterAdmin) {
		Refused(admin.DeleteTopic(Unique("nowhere")), sarama.ErrUnknownTopicOrPartition)
	})
}

func autoCreation(ctx context.Context) {
	topic := Unique("sarama-auto")
	Done(produce([]*sarama.ProducerMessage{message(topic, "v")}, func(c *sarama.Config) { c.Metadata.Retry.Max = 20 }))
	producer := Must(sarama.NewSyncProducer([]string{StrictBootstrap}, config()))
	defer producer.Close()
	_, _, err := producer.SendMessage(message(Unique("sarama-refused"), "v"))
	Refused(err, sarama.ErrUnknownTopicOrPartition)
}

func deletedRecords(ctx context.Context) {
	topic := newTopic(1)
	sent := numbered(topic, 10)
	for _, one := range sent {
		Done(produce([]*sarama.ProducerMessage{one}))
	}
	withAdmin(func(admin sarama.ClusterAdmin) { Done(admin.DeleteRecords(topic, map[int32]int64{0: 6})) })
	equalValues(consume(ctx, topic, 4, 6), sent[6:])
	equalValues(consume(ctx, topic, 4, sarama.OffsetOldest), sent[6:])
	consumer := Must(sarama.NewConsumer([]string{Bootstrap()}, config()))
	defer consumer.Close()
	_, err := consumer.ConsumePartition(topic, 0, 2)
	Refused(err, sarama.ErrOffsetOutOfRange)
}
