// The franz-go client against one broker.
package suite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "duramen/compat/gosuite"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const mib = 1 << 20

func Test_keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec(t *testing.T) {
	Run(t, everyCodec)
}
func Test_null_and_empty_keys_and_values_stay_apart(t *testing.T)               { Long(t, nullsAndEmpties) }
func Test_a_log_append_time_topic_stamps_records_itself(t *testing.T)           { Long(t, logAppendTime) }
func Test_every_acks_setting_delivers(t *testing.T)                             { Run(t, everyAcks) }
func Test_the_default_producer_is_idempotent_and_keeps_order(t *testing.T)      { Run(t, idempotentOrder) }
func Test_a_record_of_11_mb_goes_through_when_the_topic_allows_it(t *testing.T) { Long(t, largeRecord) }
func Test_an_oversize_record_is_refused_and_the_next_one_is_not(t *testing.T)   { Run(t, oversize) }
func Test_a_record_without_a_key_is_refused_by_a_compacted_topic(t *testing.T) {
	Long(t, keylessCompacted)
}
func Test_a_timestamp_too_far_ahead_is_refused(t *testing.T)     { Long(t, timestampAhead) }
func Test_offsets_are_found_by_timestamp(t *testing.T)           { Run(t, offsetsByTimestamp) }
func Test_many_partitions_are_read_by_one_consumer(t *testing.T) { Long(t, manyPartitions) }
func Test_a_waiting_consumer_gets_a_record_at_once(t *testing.T) { Long(t, waitingConsumer) }
func Test_topics_are_deleted_and_recreated_with_a_new_id_and_no_old_data(t *testing.T) {
	Run(t, recreation)
}
func Test_bad_topics_are_refused_by_code(t *testing.T) { Long(t, badTopics) }
func Test_producing_to_an_unknown_topic_creates_it_only_where_client_and_broker_allow_that(t *testing.T) {
	Long(t, autoCreation)
}
func Test_deleted_records_are_out_of_range(t *testing.T)       { Run(t, deletedRecords) }
func Test_every_topic_is_listed_with_its_offsets(t *testing.T) { Long(t, listing) }

// What the tests are made of.

// client asks for metadata as often as it wants: topics here live for moments.
func client(options ...kgo.Opt) *kgo.Client {
	fixed := append(login(), kgo.SeedBrokers(Bootstrap()), kgo.MetadataMinAge(20*time.Millisecond))
	return Must(kgo.NewClient(append(fixed, options...)...))
}

func login() []kgo.Opt {
	if User == "" {
		return nil
	}
	return []kgo.Opt{kgo.DialTLSConfig(Trusting()), kgo.SASL(scram.Auth{User: User, Pass: Password}.AsSha512Mechanism())}
}

func admin() *kadm.Client {
	return kadm.NewClient(client())
}

func create(ctx context.Context, name string, partitions int32, replicas int16, configs ...string) error {
	client := admin()
	defer client.Close()
	settings := map[string]*string{}
	for i := 0; i < len(configs); i += 2 {
		settings[configs[i]] = &configs[i+1]
	}
	_, err := client.CreateTopic(ctx, partitions, replicas, settings, name)
	return err
}

func newTopic(ctx context.Context, partitions int32, configs ...string) string {
	name := Unique("franz")
	if err := create(ctx, name, partitions, int16(Brokers()), configs...); err != nil {
		panic(err)
	}
	return name
}

func message(topic, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: []byte(value)}
}

func numbered(topic string, count int) []*kgo.Record {
	records := make([]*kgo.Record, count)
	for i := range records {
		records[i] = message(topic, strconv.Itoa(i))
	}
	return records
}

// produce sends to the partitions that the records name, and fills in their offsets.
func produce(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) error {
	options = append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(3)}, options...)
	producer := client(options...)
	defer producer.Close()
	return producer.ProduceSync(ctx, records...).FirstErr()
}

func mustProduce(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) {
	if err := produce(ctx, records, options...); err != nil {
		panic(err)
	}
}

func assigned(topic string, partitions int32, offset kgo.Offset, options ...kgo.Opt) *kgo.Client {
	offsets := map[int32]kgo.Offset{}
	for partition := range partitions {
		offsets[partition] = offset
	}
	return client(append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}),
		kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.FetchMaxPartitionBytes(16 * mib),
	}, options...)...)
}

// consume reads `count` records of partition 0 from an offset on.
func consume(ctx context.Context, topic string, count int, offset int64, options ...kgo.Opt) []*kgo.Record {
	consumer := assigned(topic, 1, kgo.NewOffset().At(offset), options...)
	defer consumer.Close()
	var found []*kgo.Record
	for len(found) < count {
		fetches := consumer.PollFetches(ctx)
		fetches.EachError(func(_ string, _ int32, err error) { panic(err) })
		found = append(found, fetches.Records()...)
	}
	Check(len(found) == count, "expected %d records, got %d", count, len(found))
	return found
}

func equalValues(got []*kgo.Record, sent []*kgo.Record) {
	for i := range sent {
		Check(bytes.Equal(got[i].Value, sent[i].Value), "record %d: expected %q, got %q", i, sent[i].Value, got[i].Value)
	}
}

// The tests.

func everyCodec(ctx context.Context) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		topic := newTopic(ctx, 1)
		var sent []*kgo.Record
		for i := range 500 {
			sent = append(sent, &kgo.Record{
				Topic: topic, Key: []byte(fmt.Sprint("key-", i)), Value: bytes.Repeat([]byte(fmt.Sprint("value-", i, " ")), 50),
				Headers:   []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}, {Key: "null"}},
				Timestamp: time.UnixMilli(1_600_000_000_000 + int64(i)),
			})
		}
		mustProduce(ctx, sent, kgo.ProducerBatchCompression(codec))
		for i, got := range consume(ctx, topic, 500, 0) {
			Check(got.Offset == int64(i) && sent[i].Offset == int64(i), "%s: offset %d and %d at %d", name, got.Offset, sent[i].Offset, i)
			Check(bytes.Equal(got.Key, sent[i].Key) && bytes.Equal(got.Value, sent[i].Value), "%s: record %d differs", name, i)
			Check(got.Timestamp.Equal(sent[i].Timestamp), "%s: timestamp %v", name, got.Timestamp)
			Check(got.Attrs.TimestampType() == 0, "%s: a create time", name)
			Check(len(got.Headers) == 3 && string(got.Headers[0].Value) == "1" && got.Headers[2].Value == nil, "%s: headers %v", name, got.Headers)
		}
	}
}

func nullsAndEmpties(ctx context.Context) {
	topic := newTopic(ctx, 1)
	pairs := [][2][]byte{{nil, []byte("v")}, {[]byte("k"), nil}, {nil, nil}, {{}, {}}, {[]byte("k"), {}}}
	var sent []*kgo.Record
	for _, pair := range pairs {
		sent = append(sent, &kgo.Record{Topic: topic, Key: pair[0], Value: pair[1]})
	}
	mustProduce(ctx, sent)
	for i, got := range consume(ctx, topic, len(pairs), 0) {
		Check((got.Key == nil) == (pairs[i][0] == nil) && (got.Value == nil) == (pairs[i][1] == nil), "pair %d: %v", i, got)
	}
}

func logAppendTime(ctx context.Context) {
	topic := newTopic(ctx, 1, "message.timestamp.type", "LogAppendTime")
	before := time.Now().Truncate(time.Millisecond)
	mustProduce(ctx, []*kgo.Record{{Topic: topic, Value: []byte("v"), Timestamp: time.UnixMilli(1000)}})
	got := consume(ctx, topic, 1, 0)[0]
	Check(got.Attrs.TimestampType() == 1, "the type is %d", got.Attrs.TimestampType())
	Check(!got.Timestamp.Before(before) && !got.Timestamp.After(time.Now()), "stamped %v", got.Timestamp)
}

func everyAcks(ctx context.Context) {
	for name, acks := range map[string]kgo.Acks{"none": kgo.NoAck(), "leader": kgo.LeaderAck(), "all": kgo.AllISRAcks()} {
		topic := newTopic(ctx, 1)
		sent := numbered(topic, 200)
		mustProduce(ctx, sent, kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite())
		got := consume(ctx, topic, 200, 0)
		equalValues(got, sent)
		Check(name == "none" || sent[199].Offset == 199, "acks %s: offset %d", name, sent[199].Offset)
	}
}

func idempotentOrder(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := numbered(topic, 20_000)
	mustProduce(ctx, sent, kgo.ProducerBatchMaxBytes(1000), kgo.ProducerLinger(0))
	equalValues(consume(ctx, topic, 20_000, 0), sent)
}

func largeRecord(ctx context.Context) {
	topic := newTopic(ctx, 1, "max.message.bytes", strconv.Itoa(11*mib))
	value := make([]byte, 11*mib-1000)
	for i := range value {
		value[i] = byte(i * 31 >> 3)
	}
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression()} {
		mustProduce(ctx, []*kgo.Record{{Topic: topic, Value: value}}, kgo.ProducerBatchMaxBytes(11*mib), kgo.ProducerBatchCompression(codec))
	}
	for _, got := range consume(ctx, topic, 2, 0) {
		Check(bytes.Equal(got.Value, value), "the content differs")
	}
}

func oversize(ctx context.Context) {
	topic := newTopic(ctx, 1, "max.message.bytes", "2000")
	mustProduce(ctx, []*kgo.Record{message(topic, "before")})
	Refused(produce(ctx, []*kgo.Record{message(topic, strings.Repeat("x", 5000))}, kgo.ProducerBatchCompression(kgo.NoCompression())), kerr.MessageTooLarge)
	mustProduce(ctx, []*kgo.Record{message(topic, "after")})
	equalValues(consume(ctx, topic, 2, 0), []*kgo.Record{message(topic, "before"), message(topic, "after")})
}

func keylessCompacted(ctx context.Context) {
	topic := newTopic(ctx, 1, "cleanup.policy", "compact")
	Refused(produce(ctx, []*kgo.Record{message(topic, "v")}), kerr.InvalidRecord)
	mustProduce(ctx, []*kgo.Record{{Topic: topic, Key: []byte("k")}})
}

func timestampAhead(ctx context.Context) {
	topic := newTopic(ctx, 1)
	ahead := &kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: time.Now().Add(48 * time.Hour)}
	Refused(produce(ctx, []*kgo.Record{ahead}), kerr.InvalidTimestamp)
}

func offsetsByTimestamp(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := numbered(topic, 100)
	for i, record := range sent {
		record.Timestamp = time.UnixMilli(10_000 + 10*int64(i))
	}
	mustProduce(ctx, sent)
	client := admin()
	defer client.Close()
	for asked, offset := range map[int64]int64{0: 0, 10_000: 0, 10_001: 1, 10_495: 50, 10_990: 99} {
		found, _ := Must(client.ListOffsetsAfterMilli(ctx, asked, topic)).Lookup(topic, 0)
		Check(found.Err == nil && found.Offset == offset && found.Timestamp == 10_000+10*offset, "timestamp %d: %+v", asked, found)
	}
	largest, _ := Must(client.ListMaxTimestampOffsets(ctx, topic)).Lookup(topic, 0)
	Check(largest.Offset == 99 && largest.Timestamp == 10_990, "the largest timestamp: %+v", largest)
	first, _ := Must(client.ListStartOffsets(ctx, topic)).Lookup(topic, 0)
	last, _ := Must(client.ListEndOffsets(ctx, topic)).Lookup(topic, 0)
	Check(first.Offset == 0 && last.Offset == 100, "from %d to %d", first.Offset, last.Offset)
}

func manyPartitions(ctx context.Context) {
	const partitions, each = 60, 50
	topic := newTopic(ctx, partitions)
	sent := numbered(topic, partitions*each)
	for i, record := range sent {
		record.Partition = int32(i % partitions)
	}
	mustProduce(ctx, sent)
	consumer := assigned(topic, partitions, kgo.NewOffset().AtStart())
	defer consumer.Close()
	next := make([]int, partitions)
	for count := 0; count < len(sent); count++ {
		fetches := consumer.PollRecords(ctx, 1)
		fetches.EachError(func(_ string, _ int32, err error) { panic(err) })
		got := fetches.Records()[0]
		expected := next[got.Partition]*partitions + int(got.Partition)
		Check(string(got.Value) == strconv.Itoa(expected), "partition %d: expected %d, got %s", got.Partition, expected, got.Value)
		next[got.Partition]++
	}
}

func waitingConsumer(ctx context.Context) {
	topic := newTopic(ctx, 1)
	consumer := assigned(topic, 1, kgo.NewOffset().AtStart(), kgo.FetchMaxWait(5*time.Second))
	defer consumer.Close()
	empty, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	Check(consumer.PollFetches(empty).NumRecords() == 0, "nothing is there yet")
	for range 3 {
		mustProduce(ctx, []*kgo.Record{message(topic, "now")})
		acknowledged := time.Now()
		Check(consumer.PollFetches(ctx).NumRecords() == 1, "one record")
		Check(time.Since(acknowledged) < 500*time.Millisecond, "woke %v after the acknowledgement", time.Since(acknowledged))
	}
}

func recreation(ctx context.Context) {
	topic := Unique("franz-again")
	ids := map[kadm.TopicID]bool{}
	for generation := range 3 {
		if err := create(ctx, topic, 2, int16(Brokers())); err != nil {
			panic(err)
		}
		ids[listed(ctx)[topic].ID] = true
		sent := []*kgo.Record{message(topic, fmt.Sprint("generation ", generation))}
		mustProduce(ctx, sent)
		Check(sent[0].Offset == 0, "the first offset is %d", sent[0].Offset)
		equalValues(consume(ctx, topic, 1, 0), sent)
		remove(ctx, topic)
		for listed(ctx).Has(topic) {
			time.Sleep(50 * time.Millisecond)
		}
	}
	Check(len(ids) == 3, "%d ids of 3 topics", len(ids))
}

// listed asks with a client of its own, because a client answers itself from what it heard moments ago.
func listed(ctx context.Context) kadm.TopicDetails {
	client := admin()
	defer client.Close()
	return Must(client.ListTopics(ctx))
}

func remove(ctx context.Context, topic string) {
	client := admin()
	defer client.Close()
	Must(client.DeleteTopic(ctx, topic))
}

func badTopics(ctx context.Context) {
	name := Unique("franz-bad")
	Refused(create(ctx, "bad name", 1, 1), kerr.InvalidTopicException)
	Refused(create(ctx, name, 0, 1), kerr.InvalidPartitions)
	Refused(create(ctx, name, 1, 9), kerr.InvalidReplicationFactor)
	Refused(create(ctx, name, 1, 1, "retention.ms", "soon"), kerr.InvalidConfig)
	Refused(create(ctx, name, 1, 1, "no.such.setting", "1"), kerr.InvalidConfig)
	Refused(create(ctx, newTopic(ctx, 1), 1, 1), kerr.TopicAlreadyExists)
	client := admin()
	defer client.Close()
	_, err := client.DeleteTopic(ctx, Unique("nowhere"))
	Refused(err, kerr.UnknownTopicOrPartition)
}

func autoCreation(ctx context.Context) {
	topic := Unique("franz-auto")
	mustProduce(ctx, []*kgo.Record{message(topic, "v")}, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(20))
	Refused(produce(ctx, []*kgo.Record{message(Unique("franz-refused"), "v")}), kerr.UnknownTopicOrPartition)
	onStrict := []kgo.Opt{kgo.SeedBrokers(StrictBootstrap), kgo.AllowAutoTopicCreation()}
	Refused(produce(ctx, []*kgo.Record{message(Unique("franz-refused"), "v")}, onStrict...), kerr.UnknownTopicOrPartition)
}

func deletedRecords(ctx context.Context) {
	topic := newTopic(ctx, 1)
	sent := numbered(topic, 10)
	for _, record := range sent {
		mustProduce(ctx, []*kgo.Record{record})
	}
	client := admin()
	defer client.Close()
	var before kadm.Offsets
	before.AddOffset(topic, 0, 6, -1)
	answer, _ := Must(client.DeleteRecords(ctx, before)).Lookup(topic, 0)
	Check(answer.Err == nil && answer.LowWatermark == 6, "%+v", answer)
	equalValues(consume(ctx, topic, 4, 6), sent[6:])
	equalValues(consume(ctx, topic, 4, 2, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())), sent[6:])
	consumer := assigned(topic, 1, kgo.NewOffset().At(2), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	defer consumer.Close()
	Refused(consumer.PollFetches(ctx).Err0(), kerr.OffsetOutOfRange)
}

func listing(ctx context.Context) {
	topic := newTopic(ctx, 3)
	mustProduce(ctx, numbered(topic, 5))
	client := admin()
	defer client.Close()
	metadata := Must(client.Metadata(ctx))
	ids := metadata.Brokers.NodeIDs()
	Check(len(ids) == Brokers() && slices.Contains(ids, metadata.Controller), "%+v", metadata.Brokers)
	Check(len(metadata.Topics[topic].Partitions) == 3, "%+v", metadata.Topics[topic])
	ends := Must(client.ListEndOffsets(ctx)).Offsets()
	end, _ := ends.Lookup(topic, 0)
	Check(end.At == 5, "the end is %d", end.At)
}
