package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Field of an entry that has the queue's name, where one stream has all queues.
const redisQueue = "q"

// redisWork is a stream with a consumer group, in which the queue is a field.
type redisWork struct {
	redisPeer
}

type redisWorker struct {
	p      *redisWork
	client *redis.Client
	number int
}

func newRedisWork() workPeer { return &redisWork{} }

func (p *redisWork) prepare(o *options) error {
	o.connections = 1
	if err := p.redisPeer.prepare(o); err != nil {
		return err
	}
	return p.connections[0].client.XGroupCreateMkStream(context.Background(), o.stream, workGroup, "0").Err()
}

func (p *redisWork) add(queue string, value []byte) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: p.o.stream, Values: []any{redisQueue, queue, redisField, value}}
}

func (p *redisWork) fill(queues []string, values [][]byte) error {
	ctx := context.Background()
	pipeline := p.connections[0].client.Pipeline()
	for at, queue := range queues {
		pipeline.XAdd(ctx, p.add(queue, values[at]))
	}
	_, err := pipeline.Exec(ctx)
	return err
}

func (p *redisWork) send(queue string, value []byte, at time.Time) error {
	if !at.IsZero() {
		return errUnsupported
	}
	return p.connections[0].client.XAdd(context.Background(), p.add(queue, value)).Err()
}

func (p *redisWork) worker(number int) (worker, error) {
	return &redisWorker{p, p.open(1), number}, nil
}

func (w *redisWorker) lease(ctx context.Context, limit int, wait time.Duration) (names []string, values [][]byte, err error) {
	found, err := w.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: workGroup, Consumer: fmt.Sprint("worker-", w.number), Streams: []string{w.p.o.stream, ">"}, Count: int64(limit), Block: wait,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, message := range found[0].Messages {
		value, _ := message.Values[redisField].(string)
		names, values = append(names, message.ID), append(values, []byte(value))
	}
	return names, values, nil
}

func (w *redisWorker) settle(ctx context.Context, names []string) error {
	count, err := w.client.XAck(ctx, w.p.o.stream, workGroup, names...).Result()
	if err == nil && count != int64(len(names)) {
		err = fmt.Errorf("of %d entries %d were acknowledged", len(names), count)
	}
	return err
}
