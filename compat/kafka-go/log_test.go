// segmentio's kafka-go against one broker. Its Conn and Reader speak old versions of
// every request, its Client and Writer newer ones. It has no idempotent producer.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	. "duramen/compat/gosuite"
)

const mib = 1 << 20

func Test_keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec(t *testing.T) {
	Run(t, everyCodec)
}
func Test_the_old_connection_produces_and_consumes_with_every_codec(t *testing.T) {
	Run(t, oldConnection)
}
func Test_null_and_empty_keys_and_values_are_told_apart_where_the_client_does(t *testing.T) {
	Run(t, nullsAndEmpties)
}
func Test_a_log_append_time_topic_stamps_records_itself(t *testing.T)           { Run(t, logAppendTime) }
func Test_every_acks_setting_delivers(t *testing.T)                             { Run(t, everyAcks) }
func Test_small_batches_keep_their_order(t *testing.T)                          { Run(t, smallBatches) }
func Test_a_record_of_11_mb_goes_through_when_the_topic_allows_it(t *testing.T) { Run(t, largeRecord) }
func Test_refused_records_say_why(t *testing.T)                                 { Run(t, refusedRecords) }
func Test_offsets_are_found_by_timestamp(t *testing.T)                          { Run(t, offsetsByTimestamp) }
func Test_many_partitions_are_read(t *testing.T)                                { Run(t, manyPartitions) }
func Test_a_waiting_reader_gets_a_record_at_once(t *testing.T)                  { Run(t, waitingReader) }
func Test_topics_are_deleted_and_recreated_with_no_old_data(t *testing.T)       { Run(t, recreation) }
func Test_bad_topics_are_refused_by_code(t *testing.T)                          { Run(t, badTopics) }
func Test_an_unknown_topic_is_created_only_where_client_and_broker_allow_that(t *testing.T) {
	Run(t, autoCreation)
}
func Test_an_offset_outside_the_log_is_refused(t *testing.T) { Run(t, outOfRange) }

// What the tests are made of.

// transport is one for all: each knows the topics of a moment ago, and those that it has created itself. Its time is also
// what it gives a broker to answer a Metadata request.
var transport = &kafka.Transport{MetadataTTL: 500 * time.Millisecond, TLS: dialer("").TLS, SASL: dialer("").SASLMechanism}

// dialer connects what has no transport.
func dialer(clientID string) *kafka.Dialer {
	d := &kafka.Dialer{ClientID: clientID, Timeout: 10 * time.Second, DualStack: true}
	if User != "" {
		d.TLS, d.SASLMechanism = Trusting(), Must(scram.Mechanism(scram.SHA512, User, Password))
	}
	return d
}

func client() *kafka.Client { return &kafka.Client{Addr: kafka.TCP(Bootstrap()), Transport: transport} }

func create(ctx context.Context, name string, partitions, replicas int, configs ...string) error {
	topic := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: replicas}
	for i := 0; i < len(configs); i += 2 {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: configs[i], ConfigValue: configs[i+1]})
	}
	answer, err := client().CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err != nil {
		return err
	}
	return answer.Errors[name]
}

func newTopic(ctx context.Context, partitions int, configs ...string) string {
	name := Unique("kafka-go")
	Done(create(ctx, name, partitions, Brokers(), configs...))
	return name
}

func numbered(count int) []kafka.Message {
	messages := make([]kafka.Message, count)
	for i := range messages {
		messages[i].Value = []byte(strconv.Itoa(i))
	}
	return messages
}

// named sends a message to the partition in its WriterData, or to the first.
var named = kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
	partition, _ := message.WriterData.(int)
	return partition
})

// produce returns the first error that the broker answered.
func produce(ctx context.Context, topic string, messages []kafka.Message, changes ...func(*kafka.Writer)) error {
	writer := &kafka.Writer{
		Addr: kafka.TCP(Bootstrap()), Topic: topic, Balancer: named, BatchTimeout: time.Millisecond,
		RequiredAcks: kafka.RequireAll, Transport: transport,
	}
	for _, change := range changes {
		change(writer)
	}
	defer writer.Close()
	err := writer.WriteMessages(ctx, messages...)
	if all, ok := errors.AsType[kafka.WriteErrors](err); ok {
		for _, one := range all {
			if one != nil {
				return one
			}
		}
	}
	return err
}

func reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Bootstrap()}, Topic: topic, Partition: partition, MaxBytes: 16 * mib, MaxWait: 200 * time.Millisecond,
		OffsetOutOfRangeError: true, Dialer: dialer(""),
	})
}

// consume reads `count` records of a partition from its beginning.
func consume(ctx context.Context, topic string, partition, count int) []kafka.Message {
	r := reader(topic, partition)
	defer r.Close()
	var found []kafka.Message
	for len(found) < count {
		found = append(found, Must(r.ReadMessage(ctx)))
	}
	return found
}

func equalValues(got, sent []kafka.Message) {
	Check(len(got) == len(sent), "expected %d records, got %d", len(sent), len(got))
	for i := range sent {
		Check(bytes.Equal(got[i].Value, sent[i].Value), "record %d: expected %q, got %q", i, sent[i].Value, got[i].Value)
	}
}

// The tests.

var codecs = []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

func everyCodec(ctx context.Context) {
	for _, codec := range codecs {
		topic := newTopic(ctx, 1)
		var sent []kafka.Message
		for i := range 500 {
			sent = append(sent, kafka.Message{
				Key: []byte(fmt.Sprint("key-", i)), Value: []byte(strings.Repeat(fmt.Sprint("value-", i, " "), 50)),
				Headers: []kafka.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}, {Key: "null"}},
				Time:    time.UnixMilli(1_600_000_000_000 + int64(i)),
			})
		}
		Done(produce(ctx, topic, sent, func(w *kafka.Writer) { w.Compression = codec }))
		found := consume(ctx, topic, 0, 500)
		equalValues(found, sent)
		for i, got := range found {
			Check(got.Offset == int64(i) && got.HighWaterMark == 500, "%v: offset %d at %d of %d", codec, got.Offset, i, got.HighWaterMark)
			Check(bytes.Equal(got.Key, sent[i].Key) && got.Time.Equal(sent[i].Time), "%v: %q at %v", codec, got.Key, got.Time)
			Check(len(got.Headers) == 3 && string(got.Headers[0].Value) == "1" && got.Headers[2].Key == "null", "%v: headers %v", codec, got.Headers)
		}
	}
}

func oldConnection(ctx context.Context) {
	for _, codec := range codecs {
		topic := newTopic(ctx, 1)
		connection := Must(dialer("").DialLeader(ctx, "tcp", Bootstrap(), topic, 0))
		sent := numbered(200)
		for i := range sent {
			sent[i].Time = time.UnixMilli(int64(1000 + 10*i))
		}
		_, partition, offset, _, err := connection.WriteCompressedMessagesAt(codec.Codec(), sent[:100]...)
		Check(err == nil && partition == 0 && offset == 0, "%v: partition %d, offset %d: %v", codec, partition, offset, err)
		_, _, offset, _, err = connection.WriteCompressedMessagesAt(codec.Codec(), sent[100:]...)
		Check(err == nil && offset == 100, "%v: offset %d: %v", codec, offset, err)
		first, last, err := connection.ReadOffsets()
		Check(err == nil && first == 0 && last == 200, "%v: from %d to %d: %v", codec, first, last, err)
		Check(Must(connection.ReadOffset(time.UnixMilli(1501))) == 51, "%v: by timestamp", codec)
		Must(connection.Seek(150, kafka.SeekAbsolute))
		batch := connection.ReadBatchWith(kafka.ReadBatchConfig{MinBytes: 1, MaxBytes: mib, MaxWait: time.Second})
		for i := 150; i < 200; i++ {
			got := Must(batch.ReadMessage())
			Check(got.Offset == int64(i) && bytes.Equal(got.Value, sent[i].Value), "%v: %v at %d", codec, got, i)
			Check(got.Time.Equal(sent[i].Time), "%v: %v at %d", codec, got.Time, i)
		}
		Done(batch.Close())
		partitions := Must(connection.ReadPartitions(topic))
		Check(len(partitions) == 1 && len(partitions[0].Replicas) == Brokers(), "%+v", partitions)
		isOurs := func(broker kafka.Broker) bool { return 1 <= broker.ID && broker.ID <= Brokers() }
		Check(isOurs(partitions[0].Leader) && isOurs(Must(connection.Controller())), "%+v", partitions)
		Done(connection.Close())
	}
}

// This client reads a null key as an empty one; a null value arrives as null.
func nullsAndEmpties(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := []kafka.Message{{Value: []byte("v")}, {Key: []byte("k")}, {Key: []byte{}, Value: []byte{}}}
	Done(produce(ctx, topic, sent))
	answer := Must(client().Fetch(ctx, &kafka.FetchRequest{Topic: topic, MinBytes: 1, MaxBytes: mib, MaxWait: time.Second}))
	Check(answer.Error == nil && answer.HighWatermark == 3 && answer.LogStartOffset == 0, "%+v", answer)
	for i := range sent {
		got := Must(answer.Records.ReadRecord())
		Check((got.Key == nil) == (sent[i].Key == nil) && (got.Value == nil) == (sent[i].Value == nil), "record %d: %+v", i, got)
	}
	_, err := answer.Records.ReadRecord()
	Refused(err, io.EOF)
}

func logAppendTime(ctx context.Context) {
	topic := newTopic(ctx, 1, "message.timestamp.type", "LogAppendTime")
	before := time.Now().Truncate(time.Millisecond)
	answer := Must(client().Produce(ctx, &kafka.ProduceRequest{
		Topic: topic, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Time: time.UnixMilli(1000), Value: kafka.NewBytes([]byte("v"))}),
	}))
	Check(answer.Error == nil && answer.BaseOffset == 0, "%+v", answer)
	Check(!answer.LogAppendTime.Before(before) && !answer.LogAppendTime.After(time.Now()), "answered %v", answer.LogAppendTime)
}

func everyAcks(ctx context.Context) {
	for _, acks := range []kafka.RequiredAcks{kafka.RequireNone, kafka.RequireOne, kafka.RequireAll} {
		topic := newTopic(ctx, 1)
		sent := numbered(200)
		Done(produce(ctx, topic, sent, func(w *kafka.Writer) { w.RequiredAcks = acks }))
		equalValues(consume(ctx, topic, 0, 200), sent)
	}
}

func smallBatches(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := numbered(2000)
	Done(produce(ctx, topic, sent, func(w *kafka.Writer) { w.BatchSize = 10 }))
	equalValues(consume(ctx, topic, 0, len(sent)), sent)
}

func largeRecord(ctx context.Context) {
	topic := newTopic(ctx, 1, "max.message.bytes", strconv.Itoa(11*mib))
	value := make([]byte, 11*mib-1000)
	for i := range value {
		value[i] = byte(i * 31 >> 3)
	}
	for _, codec := range []kafka.Compression{0, kafka.Zstd} {
		Done(produce(ctx, topic, []kafka.Message{{Value: value}}, func(w *kafka.Writer) { w.BatchBytes, w.Compression = 12*mib, codec }))
	}
	equalValues(consume(ctx, topic, 0, 2), []kafka.Message{{Value: value}, {Value: value}})
}

func refusedRecords(ctx context.Context) {
	topic := newTopic(ctx, 1, "max.message.bytes", "2000")
	sent := []kafka.Message{{Value: []byte("before")}, {Value: []byte("after")}}
	Done(produce(ctx, topic, sent[:1]))
	Refused(produce(ctx, topic, []kafka.Message{{Value: bytes.Repeat([]byte("x"), 5000)}}), kafka.MessageSizeTooLarge)
	Done(produce(ctx, topic, sent[1:]))
	equalValues(consume(ctx, topic, 0, 2), sent)

	compacted := newTopic(ctx, 1, "cleanup.policy", "compact")
	Refused(produce(ctx, compacted, []kafka.Message{{Value: []byte("v")}}), kafka.InvalidRecord)
	ahead := kafka.Message{Value: []byte("v"), Time: time.Now().Add(48 * time.Hour)}
	Refused(produce(ctx, newTopic(ctx, 1), []kafka.Message{ahead}), kafka.InvalidTimestamp)
}

func offsetsByTimestamp(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := numbered(100)
	for i := range sent {
		sent[i].Time = time.UnixMilli(10_000 + 10*int64(i))
	}
	Done(produce(ctx, topic, sent))
	ask := func(requests ...kafka.OffsetRequest) kafka.PartitionOffsets {
		answer := Must(client().ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: requests}}))
		Check(answer.Topics[topic][0].Error == nil, "%+v", answer)
		return answer.Topics[topic][0]
	}
	for asked, offset := range map[int64]int64{0: 0, 10_000: 0, 10_001: 1, 10_495: 50, 10_990: 99} {
		// The client puts the time it asked for in the place of the record's.
		found := ask(kafka.TimeOffsetOf(0, time.UnixMilli(asked))).Offsets
		_, ok := found[offset]
		Check(ok && len(found) == 1, "timestamp %d: %v", asked, found)
	}
	ends := ask(kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0))
	Check(ends.FirstOffset == 0 && ends.LastOffset == 100, "%+v", ends)
	r := reader(topic, 0)
	defer r.Close()
	Done(r.SetOffsetAt(ctx, time.UnixMilli(10_495)))
	Check(string(Must(r.ReadMessage(ctx)).Value) == "50", "the reader is there")
}

func manyPartitions(ctx context.Context) {
	const partitions, each = 30, 50
	topic := newTopic(ctx, partitions)
	sent := numbered(partitions * each)
	for i := range sent {
		sent[i].WriterData = i % partitions
	}
	Done(produce(ctx, topic, sent))
	var all []int
	for partition := range partitions {
		all = append(all, partition)
	}
	AtOnce(all, func(partition int) {
		for next, got := range consume(ctx, topic, partition, each) {
			expected := strconv.Itoa(next*partitions + partition)
			Check(string(got.Value) == expected, "partition %d: expected %s, got %s", partition, expected, got.Value)
		}
	})
}

func waitingReader(ctx context.Context) {
	topic := newTopic(ctx, 1)
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Bootstrap()}, Topic: topic, MinBytes: 1, MaxBytes: mib, MaxWait: 2 * time.Second, Dialer: dialer(""),
	})
	defer r.Close()
	empty, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, err := r.ReadMessage(empty)
	Refused(err, context.DeadlineExceeded)
	for range 3 {
		Done(produce(ctx, topic, []kafka.Message{{Value: []byte("now")}}))
		acknowledged := time.Now()
		Must(r.ReadMessage(ctx))
		Check(time.Since(acknowledged) < 500*time.Millisecond, "woke %v after the acknowledgement", time.Since(acknowledged))
	}
}

func topics(ctx context.Context) map[string]int {
	found := map[string]int{}
	for _, topic := range Must(client().Metadata(ctx, &kafka.MetadataRequest{})).Topics {
		found[topic.Name] = len(topic.Partitions)
	}
	return found
}

func recreation(ctx context.Context) {
	topic := Unique("kafka-go-again")
	for generation := range 3 {
		Done(create(ctx, topic, 2, Brokers()))
		Until(ctx, "the topic is there", func() bool { return topics(ctx)[topic] == 2 })
		sent := []kafka.Message{{Value: []byte(fmt.Sprint("generation ", generation))}}
		Done(produce(ctx, topic, sent))
		found := consume(ctx, topic, 0, 1)
		equalValues(found, sent)
		Check(found[0].Offset == 0, "the first offset is %d", found[0].Offset)
		answer := Must(client().DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
		Done(answer.Errors[topic])
		Until(ctx, "the topic is gone", func() bool { return topics(ctx)[topic] == 0 })
	}
	// The old connection's requests for the same are too old for Kafka 4 by one version.
	connection := Must(dialer("").Dial("tcp", Bootstrap()))
	defer connection.Close()
	Done(connection.CreateTopics(kafka.TopicConfig{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}))
	Done(connection.DeleteTopics(topic))
}

func badTopics(ctx context.Context) {
	name := Unique("kafka-go-bad")
	Refused(create(ctx, "bad name", 1, 1), kafka.InvalidTopic)
	Refused(create(ctx, name, 0, 1), kafka.InvalidPartitionNumber)
	Refused(create(ctx, name, 1, 9), kafka.InvalidReplicationFactor)
	Refused(create(ctx, name, 1, 1, "retention.ms", "soon"), kafka.InvalidConfiguration)
	Refused(create(ctx, name, 1, 1, "no.such.setting", "1"), kafka.InvalidConfiguration)
	Refused(create(ctx, newTopic(ctx, 1), 1, 1), kafka.TopicAlreadyExists)
	nowhere := Unique("nowhere")
	answer := Must(client().DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{nowhere}}))
	Refused(answer.Errors[nowhere], kafka.UnknownTopicOrPartition)
}

func autoCreation(ctx context.Context) {
	allow := func(w *kafka.Writer) { w.AllowAutoTopicCreation = true }
	topic := Unique("kafka-go-auto")
	// The first attempts may meet a topic that is still being made; this client leaves those to its user.
	Until(ctx, "the topic takes a record", func() bool {
		err := produce(ctx, topic, numbered(1), allow)
		Check(err == nil || errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, kafka.LeaderNotAvailable), "%v", err)
		return err == nil
	})
	quickly := func(w *kafka.Writer) { w.MaxAttempts = 1 }
	Refused(produce(ctx, Unique("kafka-go-refused"), numbered(1), quickly), kafka.UnknownTopicOrPartition)
	onStrict := func(w *kafka.Writer) { w.Addr = kafka.TCP(StrictBootstrap) }
	Refused(produce(ctx, Unique("kafka-go-refused"), numbered(1), allow, quickly, onStrict), kafka.UnknownTopicOrPartition)
}

func outOfRange(ctx context.Context) {
	topic := newTopic(ctx, 1)
	Done(produce(ctx, topic, numbered(3)))
	r := reader(topic, 0)
	defer r.Close()
	Done(r.SetOffset(7))
	_, err := r.ReadMessage(ctx)
	Refused(err, kafka.OffsetOutOfRange)
}

func producerID(ctx context.Context) {
	give := func() (id int) {
		Until(ctx, "a producer id", func() bool {
			answer := Must(client().InitProducerID(ctx, &kafka.InitProducerIDRequest{TransactionTimeoutMs: 1000}))
			Check(answer.Error == nil || errors.Is(answer.Error, kafka.GroupLoadInProgress), "%v", answer.Error)
			id = answer.Producer.ProducerID
			return answer.Error == nil
		})
		return id
	}
	Check(give() != give(), "one id for two producers")
}
