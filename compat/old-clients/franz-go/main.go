// Some version of franz-go against one broker: franz-go-VERSION BOOTSTRAP.
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

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

const patience = 30 * time.Second

var (
	brokers = strings.Split(os.Args[1], ",")
	topic   = fmt.Sprintf("old-franz-go-%d", time.Now().UnixNano())
	codecs  = []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
)

// login is nobody's, unless run.py --secured has made a user. SCRAM would need another module.
func login() []kgo.Opt {
	user := os.Getenv("SASL_USERNAME")
	if user == "" {
		return nil
	}
	roots := x509.NewCertPool()
	authority, err := os.ReadFile(os.Getenv("SSL_CA"))
	if err != nil || !roots.AppendCertsFromPEM(authority) {
		panic(fmt.Sprint("no certificate: ", err))
	}
	shown := plain.Auth{User: user, Pass: os.Getenv("SASL_PASSWORD")}.AsMechanism()
	return []kgo.Opt{kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kgo.SASL(shown)}
}

func withClient(use func(context.Context, *kgo.Client) error, options ...kgo.Opt) error {
	client, err := kgo.NewClient(append(append(options, login()...), kgo.SeedBrokers(brokers...))...)
	if err != nil {
		return err
	}
	defer client.Close()
	context, end := context.WithTimeout(context.Background(), patience)
	defer end()
	return use(context, client)
}

func create() error {
	return withClient(func(context context.Context, client *kgo.Client) error {
		request := kmsg.NewPtrCreateTopicsRequest()
		request.TimeoutMillis = 30_000
		wanted := kmsg.NewCreateTopicsRequestTopic()
		wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = topic, 1, int16(len(brokers))
		request.Topics = append(request.Topics, wanted)
		response, err := request.RequestWith(context, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.Topics[0].ErrorCode)
	})
}

func produce() error {
	for at, codec := range codecs {
		err := withClient(func(context context.Context, client *kgo.Client) error {
			for n := 0; n < 10; n++ {
				record, err := client.ProduceSync(context, &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint(n))}).First()
				if err != nil {
					return err
				}
				if record.Offset != int64(at*10+n) {
					return fmt.Errorf("codec %d: offset %d", at, record.Offset)
				}
			}
			return nil
		}, kgo.ProducerBatchCompression(codec))
		if err != nil {
			return err
		}
	}
	return nil
}

func read(context context.Context, client *kgo.Client, count int) ([]string, error) {
	var found []string
	for len(found) < count {
		fetches := client.PollFetches(context)
		if errors := fetches.Errors(); len(errors) > 0 {
			return found, errors[0].Err
		}
		for records := fetches.RecordIter(); !records.Done(); {
			found = append(found, string(records.Next().Value))
		}
	}
	return found, nil
}

func consume() error {
	return withClient(func(context context.Context, client *kgo.Client) error {
		found, err := read(context, client, 10*len(codecs))
		if err != nil {
			return err
		}
		for n, value := range found {
			if value != fmt.Sprint(n%10) {
				return fmt.Errorf("record %d is %q", n, value)
			}
		}
		if err := client.CommitUncommittedOffsets(context); err != nil {
			return err
		}
		if offset := client.CommittedOffsets()[topic][0].Offset; offset != int64(len(found)) {
			return fmt.Errorf("committed: %d", offset)
		}
		return nil
	}, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
}

func transact() error {
	for n := 0; n < 4; n++ {
		err := withClient(func(context context.Context, client *kgo.Client) error {
			if err := client.BeginTransaction(); err != nil {
				return err
			}
			record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint("transaction ", n))}
			if err := client.ProduceSync(context, record).FirstErr(); err != nil {
				return err
			}
			return client.EndTransaction(context, kgo.TransactionEndTry(n%2 == 0))
		}, kgo.TransactionalID(topic))
		if err != nil {
			return err
		}
	}
	return withClient(func(context context.Context, client *kgo.Client) error {
		found, err := read(context, client, 10*len(codecs)+2)
		if err != nil {
			return err
		}
		if last := fmt.Sprint(found[len(found)-2:]); last != "[transaction 0 transaction 2]" {
			return fmt.Errorf("read: %s", last)
		}
		return nil
	}, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}

func remove() error {
	return withClient(func(context context.Context, client *kgo.Client) error {
		request := kmsg.NewPtrDeleteTopicsRequest()
		request.TimeoutMillis = 30_000
		request.TopicNames = []string{topic}
		named := kmsg.NewDeleteTopicsRequestTopic()
		named.Topic = &topic
		request.Topics = append(request.Topics, named)
		response, err := request.RequestWith(context, client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(response.Topics[0].ErrorCode)
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
		{"commits and aborts transactions", transact},
		{"deletes a topic", remove},
	}
	version := "?"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if strings.HasSuffix(module.Path, "/franz-go") {
				version = module.Version
			}
		}
	}
	for _, step := range steps {
		if err := step.run(); err != nil {
			fmt.Printf("%v\nFAIL franz-go %s %s\n", err, version, step.what)
			os.Exit(1)
		}
		fmt.Printf("ok   franz-go %s %s\n", version, step.what)
	}
}
