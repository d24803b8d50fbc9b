// Some version of Sarama against one broker: sarama-VERSION BOOTSTRAP. The oldest has no transactions.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/Shopify/sarama"
)

const patience = 30 * time.Second

var (
	brokers = strings.Split(os.Args[1], ",")
	topic   = fmt.Sprintf("old-sarama-%d", time.Now().UnixNano())
	codecs  = []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD}
)

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	// Else it commits by version 1 of OffsetCommit, at which Kafka 4 closes the connection, and Sarama says nothing.
	config.Consumer.Offsets.Retention = 24 * time.Hour
	logIn(config)
	return config
}

// logIn does nothing, unless run.py --secured has made a user. SCRAM would need another module.
func logIn(config *sarama.Config) {
	user := os.Getenv("SASL_USERNAME")
	if user == "" {
		return
	}
	roots := x509.NewCertPool()
	authority, err := os.ReadFile(os.Getenv("SSL_CA"))
	if err != nil || !roots.AppendCertsFromPEM(authority) {
		panic(fmt.Sprint("no certificate: ", err))
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
	config.Net.SASL.Enable, config.Net.SASL.User, config.Net.SASL.Password = true, user, os.Getenv("SASL_PASSWORD")
}

func withAdmin(use func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(brokers, config())
	if err != nil {
		return err
	}
	defer admin.Close()
	return use(admin)
}

func create() error {
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: int16(len(brokers))}, false)
	})
}

func produce() error {
	for at, codec := range codecs {
		config := config()
		config.Producer.Compression = codec
		producer, err := sarama.NewSyncProducer(brokers, config)
		if err != nil {
			return err
		}
		for n := 0; n < 10; n++ {
			_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(n))})
			if err != nil {
				return fmt.Errorf("%v: %w", codec, err)
			}
			if offset != int64(at*10+n) {
				return fmt.Errorf("%v: offset %d", codec, offset)
			}
		}
		if err := producer.Close(); err != nil {
			return err
		}
	}
	return nil
}

// reader takes all that is there, and then ends.
type reader struct {
	found []string
	end   context.CancelFunc
}

func (it *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (it *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (it *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		it.found = append(it.found, string(message.Value))
		session.MarkMessage(message, "")
		if len(it.found) == 10*len(codecs) {
			it.end()
		}
	}
	return nil
}

func consume() error {
	group, err := sarama.NewConsumerGroup(brokers, topic, config())
	if err != nil {
		return err
	}
	context, end := context.WithTimeout(context.Background(), patience)
	it := &reader{end: end}
	for context.Err() == nil {
		if err := group.Consume(context, []string{topic}, it); err != nil {
			return err
		}
	}
	if err := group.Close(); err != nil {
		return err
	}
	for n, value := range it.found {
		if value != fmt.Sprint(n%10) {
			return fmt.Errorf("record %d is %q", n, value)
		}
	}
	if len(it.found) != 10*len(codecs) {
		return fmt.Errorf("%d records", len(it.found))
	}
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		offsets, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}})
		if err != nil {
			return err
		}
		if block := offsets.GetBlock(topic, 0); block == nil || block.Offset != int64(len(it.found)) {
			return fmt.Errorf("committed: %v", block)
		}
		return nil
	})
}

func listOffsets() error {
	client, err := sarama.NewClient(brokers, config())
	if err != nil {
		return err
	}
	defer client.Close()
	for time, expected := range map[int64]int64{sarama.OffsetOldest: 0, sarama.OffsetNewest: 50, 1: 0} {
		offset, err := client.GetOffset(topic, 0, time)
		if err != nil {
			return err
		}
		if offset != expected {
			return fmt.Errorf("time %d: offset %d", time, offset)
		}
	}
	return nil
}

func remove() error {
	return withAdmin(func(admin sarama.ClusterAdmin) error {
		if err := admin.DeleteConsumerGroup(topic); err != nil {
			return err
		}
		return admin.DeleteTopic(topic)
	})
}

func main() {
	steps := []struct {
		what string
		run  func() error
	}{
		{"creates a topic", create},
		{"produces with idempotence in every codec", produce},
		{"consumes in a group and commits", consume},
		{"lists offsets", listOffsets},
		{"deletes a group and a topic", remove},
	}
	version := "?"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if strings.HasSuffix(module.Path, "/sarama") {
				version = module.Version
			}
		}
	}
	for _, step := range steps {
		if err := step.run(); err != nil {
			fmt.Printf("%v\nFAIL Sarama %s %s\n", err, version, step.what)
			os.Exit(1)
		}
		fmt.Printf("ok   Sarama %s %s\n", version, step.what)
	}
}
