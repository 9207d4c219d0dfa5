/* The part of librocketmq's C interface that docs/howto/clients/cpp.md calls: the package on PyPI
   brings the library without its headers. */
#pragma once

extern "C" {

struct CMessage;
struct CMessageExt;
struct CProducer;
struct CPushConsumer;

enum CSendStatus { E_SEND_OK };
enum CTransactionStatus { E_COMMIT_TRANSACTION, E_ROLLBACK_TRANSACTION, E_UNKNOWN_TRANSACTION };
enum CConsumeStatus { E_CONSUME_SUCCESS, E_RECONSUME_LATER };

struct CSendResult {
  CSendStatus sendStatus;
  char msgId[256];
  long long offset;
};

typedef CTransactionStatus (*Check)(CProducer*, CMessageExt*, void*);
typedef CTransactionStatus (*Execute)(CProducer*, CMessage*, void*);
typedef int (*Handle)(CPushConsumer*, CMessageExt*);

CMessage* CreateMessage(const char* topic);
int SetMessageTags(CMessage*, const char* tags);
int SetMessageKeys(CMessage*, const char* keys);
int SetMessageBody(CMessage*, const char* body);
int DestroyMessage(CMessage*);
const char* GetMessageBody(CMessageExt*);

CProducer* CreateProducer(const char* group);
CProducer* CreateTransactionProducer(const char* group, Check, void* argument);
int SetProducerNameServerAddress(CProducer*, const char* names);
int StartProducer(CProducer*);
int SendMessageSync(CProducer*, CMessage*, CSendResult*);
int SendMessageTransaction(CProducer*, CMessage*, Execute, void* argument, CSendResult*);
int ShutdownProducer(CProducer*);

CPushConsumer* CreatePushConsumer(const char* group);
int SetPushConsumerNameServerAddress(CPushConsumer*, const char* names);
int Subscribe(CPushConsumer*, const char* topic, const char* expression);
int RegisterMessageCallback(CPushConsumer*, Handle);
int StartPushConsumer(CPushConsumer*);
int ShutdownPushConsumer(CPushConsumer*);
int DestroyPushConsumer(CPushConsumer*);
}
